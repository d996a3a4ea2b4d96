"""The history of a run: every change of its status with the reason, and its attempts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import Transition
from stablessm_core.telemetry.statuses import FINAL, LOST

MAX_EVENTS = 1000


def history_json(session: Session, run_id: int, *, since: int = 0, limit: int = MAX_EVENTS) -> dict[str, Any]:
    """The HistoryAnswer: the events after number `since`, oldest first, and the attempts that start in these events."""
    found = session.scalars(
        select(Transition).where(Transition.run_id == run_id, Transition.seq > since).order_by(Transition.seq).limit(limit)
    ).all()
    before = session.scalars(
        select(Transition).where(Transition.run_id == run_id, Transition.seq <= since).order_by(Transition.seq.desc()).limit(1)
    ).first()
    events = [_event_json(event, last) for last, event in zip([before, *found], found, strict=False)]
    return {"run_id": run_id, "events": events, "attempts": _attempts_json(events)}


def hosts_of_attempts(session: Session, run_id: int) -> dict[int, str]:
    """The host of each attempt whose worker is recorded."""
    rows = session.execute(
        select(Transition.attempt, Transition.worker).where(Transition.run_id == run_id, Transition.worker.is_not(None))
    )
    return {attempt: host_of(worker) for attempt, worker in rows if worker}


def host_of(worker: str) -> str:
    """The host in a worker's name, host:pid:start."""
    return worker.rsplit(":", 2)[0]


def _event_json(event: Transition, before: Transition | None) -> dict[str, Any]:
    return {
        "seq": event.seq,
        "at": event.at,
        "event": _kind(event, before),
        "status": event.status,
        "reason": event.reason,
        "attempt": event.attempt,
        "step": event.step,
        "truncated_from": event.truncated_from,
        "worker": event.worker,
    }


def _kind(event: Transition, before: Transition | None) -> str:
    """The kind of an event, from the statuses before and after it."""
    if before is None:
        return "submitted"
    if event.status in FINAL:
        return "ended"
    if LOST in (event.status, before.status) and event.status != before.status:
        return "lost" if event.status == LOST else "found"
    if event.status == "queued":
        return "resumed" if before.status in FINAL else "requeued"
    if event.attempt != before.attempt:
        return "started"
    return "rolled_back" if event.truncated_from is not None else "cancel_requested"


def _attempts_json(events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    attempts: list[dict[str, Any]] = []
    for event in events:
        if event["event"] == "started":
            attempts.append({
                "attempt": event["attempt"], "worker": event["worker"],
                "host": host_of(event["worker"]) if event["worker"] else None,
                "started_at": event["at"], "ended_at": None, "from_step": event["step"], "to_step": None,
                "status": "running", "reason": event["reason"],
            })  # fmt: skip
        elif event["event"] == "found" and attempts:
            attempts[-1] |= {"ended_at": None, "to_step": None, "status": "running", "reason": event["reason"]}
        elif event["event"] in ("ended", "requeued", "lost") and attempts and attempts[-1]["status"] in ("running", LOST):
            attempts[-1] |= {
                "ended_at": event["at"], "to_step": event["step"], "status": event["status"], "reason": event["reason"]
            }  # fmt: skip
    return attempts
