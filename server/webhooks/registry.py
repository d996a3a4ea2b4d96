"""Webhooks: which events each address gets, and which are due.

An event is an alert or the end of a run. A webhook's cursor remembers what was delivered; it moves only after the other side has
said yes, so an event is told at least once. Ids of alerts are given before they are committed, so a smaller one can appear after
a greater one: numbers that are missing are looked for again for LATE_SECONDS. Runs that ended are found by their time, with
patience for clocks that differ by SKEW_SECONDS; each end is told once although it is seen several times.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from server.database.models import FINAL, AlertRow, Run, Webhook
from server.runs.answers import alert_answer

MAX_WEBHOOKS = 20
MAX_FAILURES = 12  # in a row; with the pauses between them that is three quarters of an hour
MAX_PAUSE_SECONDS = 600.0
LATE_SECONDS = 120.0  # longer than any transaction lives
SKEW_SECONDS = 600.0  # between the clocks of workers
MAX_GAPS = 1000
EVENTS_PER_CALL = 50
RUN_FIELDS = ("id", "name", "status", "status_reason", "step", "attempt", "result", "divergence", "finished_at")


@dataclass(frozen=True)
class Due:
    """The events to send to a webhook now, and its cursor afterwards."""

    events: list[dict[str, Any]]
    cursor: dict[str, Any]


def new_webhook(session: Session, url: str, events: list[str]) -> Webhook:
    """A new webhook; it gets the chosen events from now on."""
    now = time.time()
    newest = session.scalar(select(func.max(AlertRow.id))) or 0
    cursor: dict[str, Any] = {"alert": newest, "gaps": {}, "since": now, "ended": {}}
    webhook = Webhook(url=url, events=events, cursor=cursor, failures=0, last_error="", created_at=now)
    session.add(webhook)
    session.flush()
    return webhook


def due(session: Session, webhook: Webhook, base_url: str) -> Due:
    """The next events for this webhook, oldest first, at most EVENTS_PER_CALL of them."""
    now, cursor = time.time(), webhook.cursor
    events: list[dict[str, Any]] = []
    gaps = {int(number): float(since) for number, since in cursor["gaps"].items() if now - since < LATE_SECONDS}
    last = int(cursor["alert"])
    chosen = select(AlertRow).where(or_(AlertRow.id > last, AlertRow.id.in_(gaps))).order_by(AlertRow.id)
    for alert in session.scalars(chosen.limit(EVENTS_PER_CALL)):
        gaps.pop(alert.id, None)
        gaps |= dict.fromkeys(range(max(last + 1, alert.id - MAX_GAPS), alert.id), now)
        last = max(last, alert.id)
        if wants(webhook.events, "alert", alert.severity, alert.kind):
            events.append({"event": "alert", "url": f"{base_url}/runs/{alert.run_id}", "alert": alert_answer(alert)})
    since, ended = float(cursor["since"]), dict(cursor["ended"])
    recent = select(Run.id, Run.finished_at).where(Run.status.in_(FINAL), Run.finished_at > since - SKEW_SECONDS)
    found = [(number, at or 0.0) for number, at in session.execute(recent.order_by(Run.finished_at))]
    ends = [(number, at) for number, at in found if ended.get(str(number)) != at]
    for number, at in ends[: EVENTS_PER_CALL - len(events)]:
        ended[str(number)] = at
        since = max(since, min(at, now))  # a clock that is ahead must not hide what others end
        run = session.get_one(Run, number)
        if at > webhook.created_at and wants(webhook.events, "run", run.status):
            shown = {name: getattr(run, name) for name in RUN_FIELDS}
            events.append({"event": "run", "url": f"{base_url}/runs/{run.id}", "run": shown})
    ended = {number: at for number, at in ended.items() if at > since - SKEW_SECONDS}
    kept = dict(sorted(gaps.items())[-MAX_GAPS:])
    return Due(events, {"alert": last, "gaps": {str(k): v for k, v in kept.items()}, "since": since, "ended": ended})


def wants(chosen: list[str], event: str, *details: str) -> bool:
    """Whether `alert`, `alert.critical`, `alert.nonfinite_loss`, `run` or `run.failed`, ... is among what was chosen."""
    return event in chosen or any(f"{event}.{detail}" in chosen for detail in details)


def mark_delivered(session: Session, webhook_id: int, cursor: dict[str, Any]) -> None:
    """The other side has said yes."""
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(cursor=cursor, failures=0, last_error=""))


def mark_nothing_to_tell(session: Session, webhook_id: int, cursor: dict[str, Any]) -> None:
    """What happened was none of its events."""
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(cursor=cursor))


def mark_failed(session: Session, webhook_id: int, reason: str) -> None:
    """The other side did not say yes; after MAX_FAILURES nothing is sent until it is switched on again."""
    session.execute(
        update(Webhook).where(Webhook.id == webhook_id).values(failures=Webhook.failures + 1, last_error=reason[:300])
    )


def pause(failures: int) -> float:
    """Seconds to wait after so many failures in a row."""
    return min(float(2**failures), MAX_PAUSE_SECONDS) if failures else 0.0


def signing_key(token: str | None, webhook_id: int, created_at: float) -> str:
    """The key by which a receiver knows that a call is ours; shown once, made again whenever it is needed, stored nowhere."""
    return hmac.new((token or "").encode(), f"stablessm webhook {webhook_id} {created_at!r}".encode(), hashlib.sha256).hexdigest()


def sign(key: str, body: bytes) -> str:
    return "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
