"""Checks whether pinned packages are known to be vulnerable. Exits with status 1 for a finding without an accepted reason.

pip-audit asks PyPI about every pin of constraints.txt, and about one further release that is known to be vulnerable. If PyPI
reports no advisory for that release either, no advisories are available here (no network, or a mirror without advisories). The
script then prints a conspicuous warning and passes. Accepted findings are not passed to pip-audit as --ignore-vuln, so that the
script can report accepted findings that no longer occur.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
KNOWN_BAD = "django==2.0"  # a release with many advisories, such as CVE-2018-7536; this project does not use it
SOCKET_SECONDS = 10
SECONDS = 600.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--osv-url", help="Ask this OSV service instead of PyPI.")
    parser.add_argument("--pins", type=Path, default=ROOT / "constraints.txt")
    parser.add_argument("--accepted", type=Path, default=ROOT / ".ci" / "audit-accepted.txt")
    options = parser.parse_args()
    accepted = read_accepted(options.accepted)
    service = ["--vulnerability-service", "osv", "--osv-url", options.osv_url] if options.osv_url else []
    try:
        without_network = pip_audit(options.pins, "--dry-run")
        if without_network.returncode:
            say(f"pip-audit cannot read {options.pins}:\n{without_network.stderr}")
            return 1
        done = pip_audit(options.pins, *service)
        packages = json.loads(done.stdout)["dependencies"]
    except subprocess.TimeoutExpired:
        return not_audited(f"there is no answer within {SECONDS:g} s")
    except ValueError:  # pip-audit ended before it had asked about every package, and printed no report
        return not_audited((done.stderr.strip().splitlines() or ["no reason given"])[-1])
    return judge(packages, accepted)


def pip_audit(pins: Path, *options: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as folder:
        canary = Path(folder) / "known-bad.txt"
        canary.write_text(KNOWN_BAD + "\n")
        command = [sys.executable, "-m", "pip_audit", "--requirement", str(pins), "--requirement", str(canary)]
        command += ["--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", f"--timeout={SOCKET_SECONDS}"]
        return subprocess.run([*command, *options], capture_output=True, text=True, timeout=SECONDS)


def judge(packages: list[dict[str, Any]], accepted: dict[str, str]) -> int:
    """Print the findings of pip-audit's report, and return the exit status."""
    canary = KNOWN_BAD.partition("==")[0]
    if not any(package.get("vulns") for package in packages if package["name"] == canary):
        return not_audited(f"nothing is known against {KNOWN_BAD}")
    packages = [package for package in packages if package["name"] != canary]
    unknown = [package["name"] for package in packages if "skip_reason" in package]
    if unknown:
        say(f"NOT AUDITED, since nothing is known about them: {', '.join(unknown)}")
    found = [(package, advisory) for package in packages for advisory in package.get("vulns", ())]
    refused = [(package, advisory) for package, advisory in found if not names(advisory) & accepted.keys()]
    for package, advisory in refused:
        mended = ", ".join(advisory["fix_versions"]) or "no release"
        say(f"{package['name']} {package['version']}: {' '.join(sorted(names(advisory)))} mended in {mended}")
        say(f"    {advisory['description'][:200]}")
    for identity in sorted(accepted.keys() - set().union(*(names(advisory) for _, advisory in found))):
        say(f"{identity} is accepted and not found any more: take it out of audit-accepted.txt")
    say(f"{len(packages) - len(unknown)} pins audited, {len(found)} advisories, {len(found) - len(refused)} accepted")
    return 1 if refused else 0


def not_audited(reason: str) -> int:
    rule = "!" * 100
    say(f"{rule}\nNOT AUDITED: no advisories can be had here ({reason}).\nRun `make audit` where they can.\n{rule}")
    return 0


def names(advisory: dict[str, Any]) -> set[str]:
    return {advisory["id"], *advisory["aliases"]}


def read_accepted(path: Path) -> dict[str, str]:
    """The reason for each accepted advisory; the file has one per line, and `#` begins a comment. Ends the program if a reason is
    missing."""
    accepted = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        identity, _, reason = line.partition("#")[0].strip().partition(" ")
        if identity and not reason.strip():
            sys.exit(f"{path}: {identity} has no reason beside it")
        if identity:
            accepted[identity] = reason.strip()
    return accepted


def say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main())
