"""Registered webhooks: the events that each address gets, and the pending events.

An event is an alert, the end of a run, or a reported run that falls silent (`lost`) or reports again (`found`). A webhook's
cursor records the events that were delivered or that wait in `notifications`. It moves only after a 2xx response or together
with the waiting rows, so every event is delivered at least once. Alerts get their ids before they are committed, so a smaller id
can appear after a larger id. Missing ids are therefore checked again for LATE_SECONDS. Ended runs are found by their end time,
with a tolerance of SKEW_SECONDS for clocks that differ. Each end is sent only once, even if it is found several times. The cursor
also holds the runs that are lost: a run that enters or leaves this set is an event.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from server.database.models import AlertRow, NotificationRow, Run, Webhook
from server.lifecycle.answers import alert_json
from stablessm_core.telemetry.statuses import FINAL, LOST

MAX_WEBHOOKS = 20
MAX_FAILURES = 12  # number of consecutive failures that disable a webhook; with the pauses, about 40 minutes
MAX_PAUSE_SECONDS = 600.0
LATE_SECONDS = 120.0  # longer than any transaction takes
SKEW_SECONDS = 600.0  # maximum difference between the clocks of workers
MAX_GAPS = 1000
EVENTS_PER_CALL = 50
RUN_FIELDS = ("id", "name", "status", "status_reason", "step", "attempt", "result", "divergence", "finished_at")


@dataclass(frozen=True)
class Due:
    """The events to send to a webhook now, and the webhook's cursor after their delivery."""

    events: list[dict[str, Any]]
    cursor: dict[str, Any]


def new_webhook(session: Session, url: str, events: list[str], format: str = "json") -> Webhook:
    """Create a webhook that receives the chosen events from now on. format: json, slack, discord, teams, ntfy, email."""
    now = time.time()
    newest = session.scalar(select(func.max(AlertRow.id))) or 0
    cursor: dict[str, Any] = {"alert": newest, "gaps": {}, "since": now, "ended": {}, "lost": _lost_runs(session)}
    webhook = Webhook(
        url=url, events=events, format=format, cursor=cursor, failures=0, last_error="", last_answer="", created_at=now
    )
    if session.get_bind().dialect.name == "sqlite":  # which reuses ids, but messages of a removed webhook keep its id
        known = (session.scalar(select(func.max(column))) or 0 for column in (Webhook.id, NotificationRow.webhook_id))
        webhook.id = max(known) + 1
    session.add(webhook)
    session.flush()
    return webhook


def due(session: Session, webhook: Webhook, base_url: str, limit: int = EVENTS_PER_CALL) -> Due:
    """The next events for this webhook, oldest first, at most `limit` of them."""
    now, cursor = time.time(), webhook.cursor
    events: list[dict[str, Any]] = []
    gaps = {int(number): float(since) for number, since in cursor["gaps"].items() if now - since < LATE_SECONDS}
    last = int(cursor["alert"])
    chosen = select(AlertRow).where(or_(AlertRow.id > last, AlertRow.id.in_(gaps))).order_by(AlertRow.id)
    for alert in session.scalars(chosen.limit(limit)):
        gaps.pop(alert.id, None)
        gaps |= dict.fromkeys(range(max(last + 1, alert.id - MAX_GAPS), alert.id), now)
        last = max(last, alert.id)
        if wants(webhook.events, "alert", alert.severity, alert.kind):
            events.append({"event": "alert", "url": f"{base_url}/runs/{alert.run_id}", "alert": alert_json(alert)})
    since, ended = float(cursor["since"]), dict(cursor["ended"])
    recent = select(Run.id, Run.finished_at).where(Run.status.in_(FINAL), Run.finished_at > since - SKEW_SECONDS)
    found = [(number, at or 0.0) for number, at in session.execute(recent.order_by(Run.finished_at))]
    ends = [(number, at) for number, at in found if ended.get(str(number)) != at]
    for number, at in ends[: limit - len(events)]:
        ended[str(number)] = at
        since = max(since, min(at, now))  # a worker whose clock is ahead must not hide the runs of others
        run = session.get_one(Run, number)
        if at > webhook.created_at and wants(webhook.events, "run", run.status):
            events.append(_run_event(run, base_url))
    lost = list(cursor.get("lost", []))
    now_lost = _lost_runs(session)
    changed = sorted(set(lost) ^ set(now_lost))[: limit - len(events)]
    for run in session.scalars(select(Run).where(Run.id.in_(changed)).order_by(Run.id)):
        # a lost run that ended without reporting again is an end, see above
        change = LOST if run.status == LOST else "found" if run.status == "running" else None
        if change and wants(webhook.events, "run", change):
            events.append(_run_event(run, base_url) | {"at": now})
    lost = sorted(set(lost) ^ set(changed))
    ended = {number: at for number, at in ended.items() if at > since - SKEW_SECONDS}
    kept = dict(sorted(gaps.items())[-MAX_GAPS:])
    return Due(
        events, {"alert": last, "gaps": {str(k): v for k, v in kept.items()}, "since": since, "ended": ended, "lost": lost}
    )


def _run_event(run: Run, base_url: str) -> dict[str, Any]:
    shown = {name: getattr(run, name) for name in RUN_FIELDS}
    return {"event": "run", "url": f"{base_url}/runs/{run.id}", "run": shown}


def _lost_runs(session: Session) -> list[int]:
    return list(session.scalars(select(Run.id).where(Run.status == LOST).order_by(Run.id)))


def wants(chosen: list[str], event: str, *details: str) -> bool:
    """True if the event is chosen, by its kind (`alert`, `run`) or with a detail (`alert.critical`, `run.failed`)."""
    return event in chosen or any(f"{event}.{detail}" in chosen for detail in details)


def mark_delivered(session: Session, webhook_id: int, answer: str) -> None:
    """Record that the receiver has accepted a delivery."""
    values = {"failures": 0, "last_error": "", "last_sent_at": time.time(), "last_answer": answer[:300]}
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(**values))


def mark_test(session: Session, webhook_id: int, answer: str) -> None:
    """Record what the receiver answered to a test."""
    values = {"last_sent_at": time.time(), "last_answer": f"test: {answer}"[:300]}
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(**values))


def move_cursor(session: Session, webhook_id: int, cursor: dict[str, Any]) -> None:
    """Record that the events before the cursor need no further work: they were delivered, wait, or interest nobody."""
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(cursor=cursor))


def mark_failed(session: Session, webhook_id: int, reason: str) -> None:
    """Record a failed delivery. After MAX_FAILURES the webhook is disabled until somebody enables it again."""
    values = {"failures": Webhook.failures + 1, "last_sent_at": time.time()}
    session.execute(
        update(Webhook).where(Webhook.id == webhook_id).values(**values, last_error=reason[:300], last_answer=reason[:300])
    )


def pause(failures: int) -> float:
    """Seconds to wait after this many consecutive failures."""
    return min(float(2**failures), MAX_PAUSE_SECONDS) if failures else 0.0


def signing_key(token: str | None, webhook_id: int, created_at: float) -> str:
    """The key with which a receiver verifies that a call comes from this server. The key is shown once, computed when needed and
    never stored."""
    return hmac.new((token or "").encode(), f"stablessm webhook {webhook_id} {created_at!r}".encode(), hashlib.sha256).hexdigest()


def sign(key: str, body: bytes) -> str:
    return "sha256=" + hmac.new(key.encode(), body, hashlib.sha256).hexdigest()
