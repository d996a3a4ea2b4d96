"""What a message to people says: which run of which project, what happened and why, and where to look.

A message is plain text. server.webhooks.formats turns it into the body that a service such as Slack expects.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from server.database.models import NotificationRow, Run
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.verdict import LABELS

SEVERITIES = ("info", "warning", "critical")  # in order
MAX_LINE = 500  # characters of a line; a line may quote what another program reported
MAX_LINES = 20
CHANGES = {  # event of a run: (its severity, the words for it)
    "run.finished": ("info", "finished"),
    "run.cancelled": ("info", "was cancelled"),
    "run.found": ("info", "reports again"),
    "run.failed": ("critical", "failed"),
    "run.diverged": ("critical", "diverged"),
    "run.lost": ("critical", "fell silent"),
}


@dataclass(frozen=True)
class Message:
    """A message for people. title: one line. facts: (label, value) pairs. url: the page that shows more. link: what it opens."""

    title: str
    severity: str
    lines: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    url: str
    link: str


def sample_message(base_url: str) -> Message:
    """The message that a test sends."""
    text = "This is a test. Messages about alerts and runs arrive here."
    return Message("StableSSM: test message", "info", (text,), (), f"{base_url}/webhooks", "Open the notifications")


def message_of(rows: Sequence[NotificationRow], runs: Sequence[Run], base_url: str) -> Message:
    """One message about these rows and the runs to which they belong. Rows and runs are not empty."""
    rows = sorted(rows, key=lambda row: (-SEVERITIES.index(row.severity), not row.kind.startswith("run."), row.id))
    severity = rows[0].severity
    if len(runs) > 1:
        return _about_many(rows, runs, severity, base_url)
    run = runs[0]
    lines = [describe(row, run) for row in rows[:MAX_LINES]] + _left_out(rows)
    facts = [("Run", f"{label_of(run)} (#{run.id})")]
    facts += [("Project", one_line(run.project))] if run.project else []
    facts += [("Status", f"{run.status}, {run.step:,} steps done")]
    title = f"{_what(rows[0])}: {label_of(run)}" + (f" ({one_line(run.project)})" if run.project else "")
    return Message(title, severity, tuple(lines), tuple(facts), f"{base_url}/runs/{run.id}", "Open the run")


def _about_many(rows: Sequence[NotificationRow], runs: Sequence[Run], severity: str, base_url: str) -> Message:
    names = {run.id: run for run in runs}
    lines = [f"{_where(names[row.run_id])}: {describe(row, names[row.run_id])}"[:MAX_LINE] for row in rows[:MAX_LINES]]
    lines += _left_out(rows)
    events = sum(row.count for row in rows)
    projects = sorted({one_line(run.project) for run in runs if run.project})
    facts = [("Runs", f"{len(runs):,}"), ("Events", f"{events:,}")]
    facts += [("Projects", ", ".join(projects)[:MAX_LINE])] if projects else []
    ends = all(row.kind.startswith("run.") for row in rows)
    url, link = (f"{base_url}/", "Open the runs") if ends else (f"{base_url}/alerts?group=run", "Open the alerts")
    return Message(f"{events:,} events of {len(runs):,} runs", severity, tuple(lines), tuple(facts), url, link)


def _left_out(rows: Sequence[NotificationRow]) -> list[str]:
    return [f"and {len(rows) - MAX_LINES:,} more, see the page"] if len(rows) > MAX_LINES else []


def describe(row: NotificationRow, run: Run) -> str:
    """What happened and why, as one line, with the number of times."""
    if row.kind in CHANGES:
        words = f"The run {CHANGES[row.kind][1]} after step {row.step:,}"
        reason = one_line(row.message)
        cause = (
            LABELS.get(run.cause, run.cause)
            if run.cause not in (None, "unknown") and row.kind in ("run.diverged", "run.finished")
            else None
        )
        return f"{words}{f': {reason}' if reason else ''}{f'. Cause: {cause}' if cause else ''}"[:MAX_LINE]
    times = f"{row.count:,} alerts {_span(row)}, the newest at step {row.step:,}" if row.count > 1 else f"at step {row.step:,}"
    lasts = f"It lasts (message {row.repeated + 1}): " if row.repeated else ""
    return f"{lasts}{_name(row.kind)} ({row.severity}), {times}: {one_line(row.message)}"[:MAX_LINE]


def label_of(run: Run) -> str:
    return one_line(run.name) if run.name else f"run {run.id}"


def one_line(text: str) -> str:
    """The text without line breaks and control characters, which must not reach a header or a mail subject."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())[:MAX_LINE]


def moment(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(at))


def _what(row: NotificationRow) -> str:
    if row.kind in CHANGES:
        return f"Run {CHANGES[row.kind][1]}"
    many = f", {row.count:,} alerts" if row.count > 1 else ""
    return f"{row.severity.capitalize()}: {_name(row.kind)}{many}"


def _where(run: Run) -> str:
    return f"{label_of(run)}{f' ({one_line(run.project)})' if run.project else ''}"


def _name(kind: str) -> str:
    """The kind of an alert in words."""
    return one_line(kind.replace("_", " ")) if kind in KINDS else one_line(kind)


def _span(row: NotificationRow) -> str:
    return f"between {moment(row.first_at)} and {moment(row.last_at)}"
