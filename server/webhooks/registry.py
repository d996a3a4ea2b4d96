"""Registered webhooks: the events that each address gets, and the pending events.

An event is an alert or the end of a run. A webhook's cursor records the delivered events. It moves only after a 2xx response, so
every event is delivered at least once. Alerts get their ids before they are committed, so a smaller id can appear after a larger
id. Missing ids are therefore checked again for LATE_SECONDS. Ended runs are found by their end time, with a tolerance of
SKEW_SECONDS for clocks that differ. Each end is sent only once, even if it is found several times.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select, update
from sqlalchemy.orm import Session

from server.database.models import AlertRow, Run, Webhook
from server.lifecycle.answers import alert_json
from stablessm_core.telemetry.statuses import FINAL

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


def new_webhook(session: Session, url: str, events: list[str]) -> Webhook:
    """Create a webhook that receives the chosen events from now on."""
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
            events.append({"event": "alert", "url": f"{base_url}/runs/{alert.run_id}", "alert": alert_json(alert)})
    since, ended = float(cursor["since"]), dict(cursor["ended"])
    recent = select(Run.id, Run.finished_at).where(Run.status.in_(FINAL), Run.finished_at > since - SKEW_SECONDS)
    found = [(number, at or 0.0) for number, at in session.execute(recent.order_by(Run.finished_at))]
    ends = [(number, at) for number, at in found if ended.get(str(number)) != at]
    for number, at in ends[: EVENTS_PER_CALL - len(events)]:
        ended[str(number)] = at
        since = max(since, min(at, now))  # a worker whose clock is ahead must not hide the runs of others
        run = session.get_one(Run, number)
        if at > webhook.created_at and wants(webhook.events, "run", run.status):
            shown = {name: getattr(run, name) for name in RUN_FIELDS}
            events.append({"event": "run", "url": f"{base_url}/runs/{run.id}", "run": shown})
    ended = {number: at for number, at in ended.items() if at > since - SKEW_SECONDS}
    kept = dict(sorted(gaps.items())[-MAX_GAPS:])
    return Due(events, {"alert": last, "gaps": {str(k): v for k, v in kept.items()}, "since": since, "ended": ended})


def wants(chosen: list[str], event: str, *details: str) -> bool:
    """True if the event is chosen, by its kind (`alert`, `run`) or with a detail (`alert.critical`, `run.failed`)."""
    return event in chosen or any(f"{event}.{detail}" in chosen for detail in details)


def mark_delivered(session: Session, webhook_id: int, cursor: dict[str, Any]) -> None:
    """Record that the receiver has accepted the events."""
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(cursor=cursor, failures=0, last_error=""))


def mark_nothing_to_tell(session: Session, webhook_id: int, cursor: dict[str, Any]) -> None:
    """Record that there were new events, but none that this webhook subscribes to."""
    session.execute(update(Webhook).where(Webhook.id == webhook_id).values(cursor=cursor))


def mark_failed(session: Session, webhook_id: int, reason: str) -> None:
    """Record a failed delivery. After MAX_FAILURES the webhook is disabled until somebody enables it again."""
    session.execute(
        update(Webhook).where(Webhook.id == webhook_id).values(failures=Webhook.failures + 1, last_error=reason[:300])
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
