"""Pages, scripts, style sheets and docs use only the statuses defined in stablessm_core.telemetry.statuses."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stablessm_core.telemetry.statuses import AT_REST, FINAL, OPEN, RESUMABLE, STATUSES

ROOT = Path(__file__).parents[2]
GROUPS = {frozenset(group) for group in (STATUSES, OPEN, FINAL, AT_REST, RESUMABLE)}
FILES = sorted(path for folder in ("static", "templates") for path in (ROOT / "web" / folder).rglob("*") if path.is_file())
QUOTED = r"[\[(]((?:[\"']\w+[\"'],? ?){2,})[\])]"  # ("queued", "running") or ["queued", "running"]


def lists_in(text: str) -> list[frozenset[str]]:
    found = [frozenset(re.findall(r"\w+", match)) for match in re.findall(QUOTED, text)]
    return [names for names in found if names <= set(STATUSES)]


def test_lists_of_statuses_in_pages_and_scripts_are_complete() -> None:
    found = {(path.name, names) for path in FILES if path.suffix in (".js", ".html") for names in lists_in(path.read_text())}
    assert {("status.js", frozenset(FINAL)), ("run.html", frozenset(FINAL)), ("runs.html", frozenset(STATUSES))} <= found
    incomplete = {(name, names) for name, names in found if names not in GROUPS}
    # groups of statuses for which a page shows additional parts
    bad, ended_early = frozenset({"diverged", "failed"}), frozenset({"failed", "cancelled"})
    assert {names for _, names in incomplete} <= {bad, ended_early}


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix in (".css", ".js", ".html")], ids=lambda path: path.name)
def test_no_file_uses_an_unknown_status(path: Path) -> None:
    text = path.read_text()
    named = re.findall(r"data-status(?:-now)?=[\"']?(\w+)", text) + re.findall(r"status [!=]==? [\"'](\w+)[\"']", text)
    named += [name for group in re.findall(r"data-when=\"([\w ]+)\"", text) for name in group.split()]
    assert set(named) <= set(STATUSES)


def test_every_status_except_queued_has_a_style() -> None:
    styled = set(re.findall(r"\.status\[data-status=\"(\w+)\"\]::before", (ROOT / "web/static/base.css").read_text()))
    assert styled == set(STATUSES) - {"queued"}


def test_the_docs_name_every_status() -> None:
    [line] = [line for line in (ROOT / "docs/api.md").read_text().splitlines() if line.startswith("Statuses:")]
    assert set(re.findall(r"`(\w+)`", line.partition(". ")[0])) == set(STATUSES)
    [row] = [line for line in (ROOT / "docs/glossary.md").read_text().splitlines() if line.startswith("| status |")]
    assert set(re.findall(r"`(\w+)`", row.split("|")[3])) == set(STATUSES)
