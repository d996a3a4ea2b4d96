"""Queues: what waits where, how many may run at once, pause and go on."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.http.api.deps import DatabaseDep, SettingsDep
from server.http.schemas.queues import QueueAnswer, QueueList, QueuePatch, QueuePath
from server.runs.answers import queue_answers
from server.runs.queues import QueueState, change_queue
from server.runs.worker_wakeups import wake_workers

MOST_RINGS = 8

router = APIRouter(prefix="/api/queues", tags=["queues"])


@router.get("", response_model=QueueList)
def index(database: DatabaseDep, settings: SettingsDep) -> Any:
    """Every queue that has settings, runs or workers."""
    with database.read() as session:
        return {"queues": queue_answers(session, settings.lease_seconds)}


@router.get("/{name}", response_model=QueueAnswer)
def show(name: QueuePath, database: DatabaseDep, settings: SettingsDep) -> Any:
    """One queue. A name that nobody has used is an empty queue without a limit."""
    with database.read() as session:
        return _find(queue_answers(session, settings.lease_seconds), name)


@router.patch("/{name}", response_model=QueueAnswer)
def change(name: QueuePath, patch: QueuePatch, database: DatabaseDep, settings: SettingsDep) -> Any:
    """Limit how many runs of the queue run at once, pause it, let it go on. What runs already goes on in any case."""
    with database.write() as session:
        change_queue(session, name, {field: getattr(patch, field) for field in patch.model_fields_set})
    answer = show(name, database, settings)
    for _ in range(min(answer["queued"], MOST_RINGS)):
        wake_workers(settings.broker_url)
    return answer


def _find(queues: list[dict[str, Any]], name: str) -> dict[str, Any]:
    empty = {
        field: getattr(QueueState(name), field) for field in ("name", "max_running", "paused", "running", "queued", "oldest_at")
    }
    return next((queue for queue in queues if queue["name"] == name), empty | {"workers": 0})
