"""A reproduction is a group of sweeps, one for each part of its design. The tags of the sweeps say what they belong to.

The tags are in the sweep's base configuration, which never changes: study, preset, size, part, the signature of the design, the
hash of the registered claims, the commit of the program that submitted the runs, and the group.
"""

from __future__ import annotations

import secrets
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from studies.paper.designs import Design, Part
from studies.paper.registry import short

MARK = "paper"
WORDS = ("study", "preset", "size", "part", "design", "claims", "commit", "group")
UNKNOWN = "unknown"


@dataclass(frozen=True)
class Group:
    """What the tags of a sweep say. claims: the first twelve digits of the hash of the registered claims."""

    study: str
    preset: str | None
    size: str
    design: str
    claims: str
    commit: str
    group: str


def new_group(design: Design, claims_sha256: str) -> Group:
    """A group with a new random name for this design."""
    return Group(design.study, design.preset, design.size, design.signature, short(claims_sha256), commit(), secrets.token_hex(4))


def tags(group: Group, part: Part) -> list[str]:
    """The tags of a part's runs."""
    words = {
        "study": group.study, "preset": group.preset, "size": group.size, "part": part.name, "design": group.design,
        "claims": group.claims, "commit": group.commit, "group": group.group,
    }  # fmt: skip
    return [MARK, *(f"{word}={value}" for word, value in words.items() if value is not None)]


def sweep_name(group: Group, part: Part) -> str:
    """The name of a part's sweep, such as `table2 paper full: main (3f9a1c02)`."""
    return f"{' '.join(filter(None, (group.study, group.preset, group.size)))}: {part.name} ({group.group})"


def idempotency_key(group: Group, part: Part) -> str:
    """The key under which a part's sweep is submitted, so that a second submission makes no second sweep."""
    return f"paper-{group.group}-{part.name.encode().hex()}"


def read_tags(base: Mapping[str, Any]) -> tuple[Group, str] | None:
    """The group and the part of a sweep with this base configuration; None if the sweep belongs to no reproduction."""
    given = base.get("tags") or []
    if MARK not in given:
        return None
    found = dict(tag.split("=", 1) for tag in given if "=" in tag and tag.split("=", 1)[0] in WORDS)
    if any(word not in found for word in WORDS if word != "preset"):
        return None
    part = found.pop("part")
    return Group(preset=found.pop("preset", None), **found), part


def newest_group(sweeps: Iterable[Mapping[str, Any]], study: str, preset: str | None) -> Group | None:
    """The group that was submitted last for this study; a full one is preferred to a quick one."""
    found: dict[str, tuple[int, Group]] = {}
    for sweep in sweeps:
        read = read_tags(sweep["base"])
        if read and (read[0].study, read[0].preset) == (study, preset):
            size = read[0].size
            if size not in found or sweep["id"] > found[size][0]:
                found[size] = sweep["id"], read[0]
    return next((found[size][1] for size in ("full", "quick") if size in found), None)


def sweeps_of(sweeps: Iterable[Mapping[str, Any]], group: str) -> dict[str, Mapping[str, Any]]:
    """The sweeps of a group by part, the oldest first."""
    found: dict[str, Mapping[str, Any]] = {}
    for sweep in sorted(sweeps, key=lambda one: int(one["id"])):
        read = read_tags(sweep["base"])
        if read and read[0].group == group:
            found.setdefault(read[1], sweep)
    return found


def commit() -> str:
    """The commit of the program's source, with `+` if files differ from it; `unknown` outside a checkout."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return UNKNOWN
    try:
        head = _git(root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(root, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return UNKNOWN


def _git(root: Path, *words: str) -> str:
    return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
