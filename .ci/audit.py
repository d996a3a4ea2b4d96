"""Are any of the pinned packages known to be vulnerable? Exit status 1 for a finding that is not accepted with a reason.

Asks PyPI's JSON API, which is what pip-audit asks by default, for every pin of constraints.txt; with the standard library alone,
because an auditor that installs twenty packages has to be audited itself. First it asks about a release that is known to be
vulnerable: a mirror without advisories would call everything clean. Where the source cannot be asked it says so loudly and does
not fail.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KNOWN_BAD = ("jinja2", "2.10")  # CVE-2019-10906 and others
SECONDS = 20.0
PIN = re.compile(r"([A-Za-z0-9._-]+)==([^\s;+]+)")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", default="https://pypi.org/pypi")
    parser.add_argument("--pins", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--accepted", type=Path, default=ROOT / ".ci" / "audit-accepted.txt")
    options = parser.parse_args()
    accepted = read_accepted(options.accepted)
    pins = PIN.findall(options.pins.read_text())
    try:
        if not advisories(options.source, *KNOWN_BAD):
            raise ValueError(f"it knows of nothing wrong with {' '.join(KNOWN_BAD)}")
        with ThreadPoolExecutor(8) as threads:
            answers = list(threads.map(lambda pin: advisories(options.source, *pin), pins))
    except (OSError, ValueError) as error:
        rule = "!" * 100
        say(f"{rule}\nNOT AUDITED: {options.source} gives no advisories here ({error}).\nRun `make audit` where it does.\n{rule}")
        return 0
    found = {}
    unknown = [f"{name} {version}" for (name, version), known in zip(pins, answers, strict=True) if known is None]
    if unknown:
        say(f"NOT AUDITED, since {options.source} does not have them: {', '.join(unknown)}")
    for (name, version), known in zip(pins, answers, strict=True):
        for advisory in known or []:
            found[advisory["id"]] = (f"{name} {version}", advisory)
    names = {identity: {identity, *advisory.get("aliases", [])} for identity, (_, advisory) in found.items()}
    open_ones = [identity for identity in found if not names[identity] & accepted.keys()]
    for identity in open_ones:
        package, advisory = found[identity]
        mended = ", ".join(advisory.get("fixed_in") or ["no release"])
        say(f"{package}: {identity} {' '.join(advisory.get('aliases', []))} mended in {mended}\n    {summary(advisory)}")
    for identity in sorted(accepted.keys() - set().union(*names.values())):
        say(f"{identity} is accepted in {options.accepted.name} and not found any more: take it out")
    say(f"{len(pins) - len(unknown)} pins, {len(found)} advisories, {len(found) - len(open_ones)} accepted")
    return 1 if open_ones else 0


def advisories(source: str, name: str, version: str) -> list[dict[str, Any]] | None:
    """What is known about a release and not withdrawn; None for a release that the source does not have."""
    try:
        with urllib.request.urlopen(f"{source}/{name}/{version}/json", timeout=SECONDS) as answer:  # noqa: S310 - the caller's address
            known = json.load(answer)["vulnerabilities"]
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return None
        raise
    except KeyError:
        raise ValueError("its answers have no advisories") from None
    return [advisory for advisory in known if not advisory.get("withdrawn")]


def read_accepted(path: Path) -> dict[str, str]:
    """Advisory -> reason; one per line, `#` begins a comment. Ends the program when a reason is missing."""
    accepted = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        identity, _, reason = line.partition("#")[0].strip().partition(" ")
        if identity and not reason.strip():
            sys.exit(f"{path}: {identity} has no reason beside it")
        if identity:
            accepted[identity] = reason.strip()
    return accepted


def summary(advisory: dict[str, Any]) -> str:
    return " ".join(str(advisory.get("summary") or advisory.get("details") or "").split())[:200]


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
