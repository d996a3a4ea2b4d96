"""Counts events in rows of `notifications`, decides when each row is sent, and records what became of it.

Events of one webhook, run and kind are counted in one waiting row. The row waits for further events: a critical row until none
arrives for `critical_seconds`, every row at most `seconds`. Once it was sent, further alerts of its run and kind wait until
`repeat_seconds` have passed; if there were any, and the run still trains, the message is repeated. A run that diverged inhibits
the warnings about it. Everything is stored in the caller's transaction, so whichever server sends next continues here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from server.database.models import AlertRow, NotificationRow, Run, SilenceRow, Webhook
from server.webhooks import registry
from server.webhooks.messages import CHANGES, SEVERITIES
from server.webhooks.silences import current_silences, silence_of, words_of
from server.webhooks.transport import shown_url
from stablessm_core.telemetry.detectors.raised_elsewhere import REPORTED, RULE

MOST_ROWS = 500  # rows that are considered at once
SEPARATE_RUNS = 3  # if more runs than this have something due, one message tells about all of them
LOOK_AGAIN_SECONDS = 60.0  # pause before a message that may be repeated is considered again
RECORD_SECONDS = 3600.0  # deliveries of the same events within this time are counted in one row
SHOWN_ROWS = 200
SHOWN = (
    "id", "webhook_id", "destination", "kind", "severity", "count", "first_at", "last_at", "message", "state", "due_at",
    "sent_at", "repeated", "tries", "answer",
)  # fmt: skip
SEVERAL = (RULE.name, REPORTED.name)  # alerts of these kinds may be about different things, so none is a repetition of another
_LONGEST = 2000  # characters that are kept of an alert's text


@dataclass(frozen=True)
class Waits:
    """Seconds that a message waits for further events, and after which a message about a lasting alert is repeated."""

    critical_seconds: float = 5.0
    seconds: float = 30.0
    repeat_seconds: float = 4 * 3600.0


@dataclass
class _Events:
    """Events of one run and kind: their number, when the first and last happened, and the words of the newest of the worst."""

    severity: str
    count: int
    first_at: float
    last_at: float
    step: int
    message: str

    def add(self, other: _Events) -> None:
        self.count += other.count
        self.first_at, self.last_at = min(self.first_at, other.first_at), max(self.last_at, other.last_at)
        if SEVERITIES.index(other.severity) >= SEVERITIES.index(self.severity):
            self.severity, self.step, self.message = other.severity, other.step, other.message


def store_events(session: Session, webhook: Webhook, events: Iterable[Mapping[str, Any]], now: float, waits: Waits) -> None:
    """Count new events (registry.due) in the rows that wait for the webhook."""
    for (run_id, kind), new in _by_kind(session, events).items():
        row = _newest(session, webhook, run_id, kind)
        if row is not None and row.state == "waiting":
            _add(row, new)
            row.due_at = min(row.due_by, now + waits.critical_seconds) if row.severity == "critical" else row.due_at
        elif row is None or row.repeat_at is None or (new.severity == "critical" and row.severity != "critical"):
            if row is not None:
                row.repeat_at = None  # the new row is repeated instead
            due_by = now + max(waits.seconds, waits.critical_seconds)
            due_at = now + waits.critical_seconds if new.severity == "critical" else now + waits.seconds
            session.add(_row(webhook, run_id, kind, new, state="waiting", due_at=due_at, due_by=due_by))
        # else: the alert lasts. repeat_due counts it when the message is due again.
    session.flush()


def anything_due(session: Session, webhook: Webhook, now: float) -> bool:
    """True if a message is to be sent, or to be considered again."""
    mine = NotificationRow.webhook_id == webhook.id
    waiting = select(NotificationRow.id).where(mine, NotificationRow.state == "waiting", NotificationRow.due_at <= now)
    repeats = select(NotificationRow.id).where(mine, NotificationRow.repeat_at <= now)
    return any(session.scalar(query.limit(1)) is not None for query in (waiting, repeats))


def repeat_due(session: Session, webhook: Webhook, now: float) -> None:
    """Let messages about alerts that last wait again, once the time has come."""
    due = select(NotificationRow).where(NotificationRow.webhook_id == webhook.id, NotificationRow.repeat_at <= now)
    for row in session.scalars(due.order_by(NotificationRow.repeat_at).limit(MOST_ROWS)).all():
        status = session.scalar(select(Run.status).where(Run.id == row.run_id, Run.deleted_at.is_(None)))
        wanted = [one for one in SEVERITIES if registry.wants(webhook.events, "alert", one, row.kind)]
        newer = AlertRow.created_at > row.last_at, AlertRow.severity.in_(wanted)
        raised = AlertRow.run_id == row.run_id, AlertRow.kind == row.kind, *newer
        count = session.scalar(select(func.count()).select_from(AlertRow).where(*raised)) or 0
        if status != "running" or not count:
            # without a further alert it does not last: the next alert is a new message
            row.repeat_at = now + LOOK_AGAIN_SECONDS if count and status in ("queued", "lost") else None
            continue
        newest = session.scalars(select(AlertRow).where(*raised).order_by(AlertRow.created_at.desc()).limit(1)).one()
        first = session.scalar(select(func.min(AlertRow.created_at)).where(*raised)) or newest.created_at
        events = _Events(newest.severity, count, first, newest.created_at, newest.step, newest.message[:_LONGEST])
        row.repeat_at = None
        again = _row(webhook, row.run_id, row.kind, events, state="waiting", due_at=now, due_by=now)
        again.repeated = row.repeated + (row.state == "sent")
        session.add(again)
    session.flush()


def next_message(session: Session, webhook: Webhook, now: float) -> tuple[list[NotificationRow], list[Run]]:
    """The rows of the next message, and their runs; empty if nothing is due. Rows that must not be sent are marked with the
    reason."""
    waiting = NotificationRow.webhook_id == webhook.id, NotificationRow.state == "waiting"
    due = select(NotificationRow.run_id).where(*waiting, NotificationRow.due_at <= now).order_by(NotificationRow.due_at)
    numbers = list(dict.fromkeys(session.scalars(due.limit(MOST_ROWS))))
    if not numbers:
        return [], []
    runs = {run.id: run for run in session.scalars(select(Run).where(Run.id.in_(numbers)))}
    # what else waits about a run goes along
    rows = session.scalars(
        select(NotificationRow).where(*waiting, NotificationRow.run_id.in_(numbers)).order_by(NotificationRow.id)
    )
    silences = current_silences(session, now)
    kept: dict[int, list[NotificationRow]] = {}
    for row in rows.all():
        run = runs[row.run_id]
        silence = silence_of(silences, run.id, run.project, row.kind)
        if run.deleted_at is not None:
            _decide(row, "inhibited", "the run is in the trash", now)
        elif silence is not None:
            _decide(row, "silenced", words_of(silence), now)
            row.repeat_at = None if row.kind in CHANGES else silence.until
        elif run.status == "diverged" and row.severity == "warning":
            _decide(row, "inhibited", "the run diverged, so its warnings are not sent", now)
        else:
            kept.setdefault(run.id, []).append(row)
    session.flush()
    chosen = list(kept) if len(kept) > SEPARATE_RUNS else list(kept)[:1]
    return [row for number in chosen for row in kept[number]], [runs[number] for number in chosen]


def mark_sent(
    session: Session, rows: Sequence[NotificationRow], runs: Sequence[Run], answer: str, now: float, waits: Waits
) -> None:
    """Record that the receiver accepted the message about these rows."""
    statuses = {run.id: run.status for run in runs}
    for row in rows:
        lasting = row.kind not in CHANGES and row.kind not in SEVERAL and statuses[row.run_id] in ("queued", "running", "lost")
        repeat_at = now + waits.repeat_seconds if lasting else None
        changes = {"state": "sent", "sent_at": now, "answer": answer, "repeat_at": repeat_at}
        _change(session, [row.id], tries=NotificationRow.tries + 1, **changes)


def mark_not_sent(session: Session, rows: Sequence[NotificationRow], answer: str, now: float, *, given_up: bool) -> None:
    """Record a failed try. given_up: the webhook is switched off, so there is no further try."""
    more: dict[str, Any] = {"state": "failed", "sent_at": now} if given_up else {}
    _change(session, [row.id for row in rows], tries=NotificationRow.tries + 1, answer=answer[:300], **more)


def end_silence(session: Session, silence: SilenceRow, now: float) -> None:
    """Consider at once the alerts that a deleted silence kept back. Another silence may still keep them back."""
    kept = NotificationRow.state == "silenced", NotificationRow.repeat_at > now
    statement = update(NotificationRow).where(*kept)
    if silence.run_id is not None:
        statement = statement.where(NotificationRow.run_id == silence.run_id)
    if silence.project is not None:
        statement = statement.where(NotificationRow.run_id.in_(select(Run.id).where(Run.project == silence.project)))
    if silence.kind is not None:
        statement = statement.where(NotificationRow.kind == silence.kind)
    session.execute(statement.values(repeat_at=now).execution_options(synchronize_session=False))


def send_again(session: Session, webhook_id: int, now: float) -> None:
    """Let the messages wait again that were given up when the webhook was switched off."""
    failed = NotificationRow.webhook_id == webhook_id, NotificationRow.state == "failed"
    session.execute(update(NotificationRow).where(*failed).values(state="waiting", due_at=now, due_by=now, sent_at=None))


def drop_waiting(session: Session, webhook_id: int, now: float) -> None:
    """Record that the messages that wait for a webhook are not sent, because it is deleted."""
    mine = NotificationRow.webhook_id == webhook_id
    values = {"state": "failed", "sent_at": now, "answer": "the webhook was removed"}
    session.execute(update(NotificationRow).where(mine, NotificationRow.state == "waiting").values(**values))
    session.execute(update(NotificationRow).where(mine).values(repeat_at=None))


def notifications_json(session: Session, run_id: int) -> list[dict[str, Any]]:
    """The NotificationAnswer of the newest messages about a run, oldest first."""
    newest = select(NotificationRow).where(NotificationRow.run_id == run_id).order_by(NotificationRow.id.desc())
    rows = session.scalars(newest.limit(SHOWN_ROWS)).all()
    return [{name: getattr(row, name) for name in SHOWN} for row in reversed(rows)]


def record_events(
    session: Session, webhook: Webhook, events: Iterable[Mapping[str, Any]], state: str, answer: str, now: float
) -> None:
    """Record what became of events that were sent to a program as they are, without grouping."""
    for (run_id, kind), new in _by_kind(session, events).items():
        row = _newest(session, webhook, run_id, kind)
        if row is not None and row.state == state and now - row.due_at < RECORD_SECONDS:
            _add(row, new)
        else:
            row = _row(webhook, run_id, kind, new, state=state, due_at=now, due_by=now)
            session.add(row)
        row.sent_at, row.answer, row.tries = now, answer[:300], 1 + webhook.failures
    session.flush()


def split_silenced(
    session: Session, events: Iterable[Mapping[str, Any]], now: float
) -> tuple[list[Mapping[str, Any]], dict[str, list[Mapping[str, Any]]]]:
    """The events that no silence matches, and those that a silence matches by the words for it."""
    silences = current_silences(session, now)
    events = list(events)
    if not silences:
        return events, {}
    numbers = {_described(event)[0] for event in events}
    projects = dict(session.execute(select(Run.id, Run.project).where(Run.id.in_(numbers))).all())
    sent: list[Mapping[str, Any]] = []
    silenced: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        run_id, kind, _ = _described(event)
        silence = silence_of(silences, run_id, projects.get(run_id, ""), kind)
        (sent if silence is None else silenced.setdefault(words_of(silence), [])).append(event)
    return sent, silenced


def _by_kind(session: Session, events: Iterable[Mapping[str, Any]]) -> dict[tuple[int, str], _Events]:
    """The events by run and kind, without those of deleted runs."""
    found: dict[tuple[int, str], _Events] = {}
    for event in events:
        run_id, kind, one = _described(event)
        if (run_id, kind) in found:
            found[run_id, kind].add(one)
        else:
            found[run_id, kind] = one
    known = set(session.scalars(select(Run.id).where(Run.id.in_({run_id for run_id, _ in found}))))
    return {key: one for key, one in found.items() if key[0] in known}


def _described(event: Mapping[str, Any]) -> tuple[int, str, _Events]:
    """The run, the kind and the words of an event (registry.due)."""
    if event["event"] == "alert":
        alert = event["alert"]
        at, step = alert["created_at"], alert["step"]
        severity = alert["severity"] if alert["severity"] in SEVERITIES else "warning"
        return alert["run_id"], alert["kind"], _Events(severity, 1, at, at, step, alert["message"][:_LONGEST])
    run = event["run"]
    kind = "run.found" if run["status"] == "running" else f"run.{run['status']}"
    at = run["finished_at"] or event.get("at", 0.0)
    return (
        run["id"],
        kind,
        _Events(CHANGES[kind][0] if kind in CHANGES else "info", 1, at, at, run["step"], run["status_reason"][:_LONGEST]),
    )


def _newest(session: Session, webhook: Webhook, run_id: int, kind: str) -> NotificationRow | None:
    same = NotificationRow.run_id == run_id, NotificationRow.webhook_id == webhook.id, NotificationRow.kind == kind
    return session.scalars(select(NotificationRow).where(*same).order_by(NotificationRow.id.desc()).limit(1)).one_or_none()


def _row(webhook: Webhook, run_id: int, kind: str, new: _Events, **when: Any) -> NotificationRow:
    return NotificationRow(
        webhook_id=webhook.id, destination=shown_url(webhook.url)[:200], run_id=run_id, kind=kind, severity=new.severity,
        count=new.count, first_at=new.first_at, last_at=new.last_at, step=new.step, message=new.message, repeated=0, tries=0,
        answer="", **when,
    )  # fmt: skip


def _add(row: NotificationRow, new: _Events) -> None:
    whole = _Events(row.severity, row.count, row.first_at, row.last_at, row.step, row.message)
    whole.add(new)
    row.severity, row.count, row.step, row.message = whole.severity, whole.count, whole.step, whole.message
    row.first_at, row.last_at = whole.first_at, whole.last_at


def _decide(row: NotificationRow, state: str, answer: str, now: float) -> None:
    row.state, row.sent_at, row.answer, row.repeat_at = state, now, answer, None


def _change(session: Session, numbers: Sequence[int], **values: Any) -> None:
    session.execute(update(NotificationRow).where(NotificationRow.id.in_(numbers)).values(**values))
