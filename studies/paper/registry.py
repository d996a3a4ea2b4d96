"""The registered family of claims: `docs/paper/claims.json`, its hash, and the committed reports beside it.

The family was written before the runs. A report contains the hash of the file, so that a later change of a test, of a margin or
of the size of the family cannot go unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
# a wheel contains a copy of docs/paper beside this module (service/build_backend.py)
FOLDERS = (HERE / "registered", HERE.parents[1] / "docs" / "paper")
FIELDS = {"id", "place", "sentence", "numbers", "study", "preset", "family", "test", "untestable", "label"}
KINDS = ("paired", "exact")


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and the test that judges it.

    place: where the paper states it. numbers: the paper's numbers. study, preset: the study whose runs judge it. family: whether
    its p-value belongs to the registered family. test: null for claims without a test. untestable: why it cannot be tested here,
    or None. label: what a reader must know about the data, or None.
    """

    id: str
    place: str
    sentence: str
    numbers: Mapping[str, Any]
    study: str | None
    preset: str | None
    family: bool
    test: Mapping[str, Any] | None
    untestable: str | None
    label: str | None


@dataclass(frozen=True)
class Registry:
    """All claims, the level of the tests, and the SHA-256 of the file."""

    claims: tuple[Claim, ...]
    alpha: float
    sha256: str

    @cached_property
    def family_size(self) -> int:
        """The number of tests among which Holm's correction is made."""
        return sum(claim.family for claim in self.claims)

    def of(self, study: str, preset: str | None) -> list[Claim]:
        """The claims that this study judges, in the order of the file."""
        return [claim for claim in self.claims if claim.study == study and claim.preset in (None, preset)]


def load(path: Path | None = None) -> Registry:
    """The registry in a file, by default `claims.json`. Raises ValueError if the file is not a family of claims."""
    path = path or folder() / "claims.json"
    try:
        text = path.read_bytes()
    except OSError as error:
        raise ValueError(f"the registered claims cannot be read: {error}") from None
    return parse(text, path.name)


def parse(text: bytes, name: str = "claims.json") -> Registry:
    """The registry in the text of a file. Raises ValueError, which names the claim and the field."""
    try:
        data = json.loads(text)
        alpha, rows = float(data["alpha"]), data["claims"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name} is not a family of claims: {error!r}; expected {{alpha, claims: [...]}}") from None
    claims = [_claim(row, name) for row in rows]
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise ValueError(f"{name} contains the claim {claim.id!r} twice")
        seen.add(claim.id)
    return Registry(tuple(claims), alpha, hashlib.sha256(text).hexdigest())


def _claim(row: Any, name: str) -> Claim:
    known = row.get("id", "?") if isinstance(row, dict) else "?"
    if not isinstance(row, dict) or set(row) != FIELDS:
        given = sorted(row) if isinstance(row, dict) else type(row).__name__
        raise ValueError(f"{name}, claim {known!r}: fields are {given}; expected {sorted(FIELDS)}")
    test = row["test"]
    if test is not None and test.get("kind") not in KINDS:
        raise ValueError(f"{name}, claim {known!r}: test.kind is {test.get('kind')!r}; allowed: {', '.join(KINDS)}")
    if row["family"] and (test is None or test["kind"] != "paired"):
        raise ValueError(f"{name}, claim {known!r}: family is true; only a paired test has a p-value")
    return Claim(**row)


def folder() -> Path:
    """The folder with `claims.json` and the committed reports. Raises ValueError if this installation has none."""
    for one in FOLDERS:
        if (one / "claims.json").is_file():
            return one
    raise ValueError(f"this installation has no registered claims; looked in {', '.join(str(one) for one in FOLDERS)}")


def committed_reports(where: Path | None = None) -> dict[str, dict[str, Any]]:
    """The committed reports by name: `table5`, `table2-released`, … A file that is not a report is left out."""
    found = {}
    for path in sorted((where or folder()).glob("*.json")):
        try:
            report = json.loads(path.read_text("utf-8"))
        except ValueError:
            continue
        if isinstance(report, dict) and "study" in report and "claims_sha256" in report:
            found[path.stem] = report
    return found


def report_name(study: str, preset: str | None) -> str:
    """The name of a study's report, such as `table5` or `table2-released`."""
    return study if preset is None else f"{study}-{preset}"


def short(sha256: str) -> str:
    """The first twelve digits of a hash, which fit into a tag."""
    return sha256[:12]
