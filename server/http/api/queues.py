"""Queues: shows how many runs wait, limits how many runs train at once, and pauses queues."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from server.http.api.deps import DatabaseDep, SettingsDep
from server.http.schemas.queues import QueueAnswer, QueueList, QueuePatch, QueuePath
from server.lifecycle.answers import queues_json
from server.lifecycle.queues import QueueState, change_queue
from server.lifecycle.worker_wakeups import wake_workers

MAX_WAKES = 8

router = APIRouter(prefix="/api/queues", tags=["queues"])


@router.get("", response_model=QueueList)
def index(database: DatabaseDep, settings: SettingsDep) -> Any:
    """Every queue that has settings, runs or workers."""
    with database.read() as session:
        return {"queues": queues_json(session, settings.lease_seconds)}


@router.get("/{name}", response_model=QueueAnswer)
def show(name: QueuePath, database: DatabaseDep, settings: SettingsDep) -> Any:
    """One queue. A name that is not used yet stands for an empty queue without a limit."""
    with database.read() as session:
        return _find(queues_json(session, settings.lease_seconds), name)


@router.patch("/{name}", response_model=QueueAnswer)
def change(name: QueuePath, patch: QueuePatch, database: DatabaseDep, settings: SettingsDep) -> Any:
    """Limit how many runs of the queue may train at once, pause the queue, or resume it. Running runs always continue."""
    with database.write() as session:
        change_queue(session, name, {field: getattr(patch, field) for field in patch.model_fields_set})
    answer = show(name, database, settings)
    for _ in range(min(answer["queued"], MAX_WAKES)):
        wake_workers(settings.broker_url)
    return answer


def _find(queues: list[dict[str, Any]], name: str) -> dict[str, Any]:
    empty = {
        field: getattr(QueueState(name), field) for field in ("name", "max_running", "paused", "running", "queued", "oldest_at")
    }
    return next((queue for queue in queues if queue["name"] == name), empty | {"workers": 0})
