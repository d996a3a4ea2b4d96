"""Deleting runs: into the trash, out of it again, for good."""

from __future__ import annotations

import logging
import re
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from sqlalchemy.orm import Session

from server.checkpoint_store import StoreError
from server.database.connection import Database
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import find_run, run_shown
from server.http.schemas.runs import RunAnswer, RunId
from server.http.schemas.trash import TrashAnswer
from server.runs.deletion import purge
from server.runs.lifecycle import NotAllowed
from server.runs.trash import HOUR, move_to_trash, occupied, take_out, trash_page
from server.settings import Settings

log = logging.getLogger("stablessm.trash")
router = APIRouter(prefix="/api", tags=["runs"])

CURSOR = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)-(\d{1,18})")
Cursor = Annotated[str | None, Query(max_length=60, description="`next_cursor` of the page before.")]


@router.delete("/runs/{run_id}", status_code=204)
def delete(run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> None:
    """Put a run that has ended into the trash. For STABLESSM_TRASH_HOURS it can be brought back; then it is deleted for good with
    everything recorded of it, and its folder on every machine.
    """
    with database.write() as session:
        find_run(session, run_id)
        try:
            move_to_trash(session, run_id, by=principal.user or principal.name)
        except NotAllowed as error:
            raise Conflict(str(error), field="status", allowed="cancel it first") from None
    if settings.trash_hours == 0:
        purge_now(database, settings, run_id)


@router.post("/runs/{run_id}/restore", response_model=RunAnswer)
def restore(run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, request: Request) -> Any:
    """Bring a run back from the trash, as it was."""
    with database.write() as session:
        try:
            take_out(session, run_id, by=principal.user or principal.name)
        except NotAllowed as error:
            raise Conflict(str(error), field="run_id", allowed="a run of GET /api/trash") from None
        except LookupError as error:
            raise NotFound(str(error), field="run_id") from None
    with database.glance() as session:
        answer = run_shown(session, run_id, settings.lease_seconds)
    request.state.attempt = answer["attempt"]  # for the log's line about this write
    return answer


@router.get("/trash", response_model=TrashAnswer)
def trash(
    database: DatabaseDep, settings: SettingsDep, cursor: Cursor = None, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> Any:
    """The runs in the trash, the last deleted one first, until when each can be brought back, and what everything occupies."""
    with database.read() as session:
        return shown_trash(session, settings, cursor, limit)


@router.delete("/trash/{run_id}", status_code=204)
def delete_for_good(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> None:
    """Delete a run of the trash for good now."""
    if not purge_now(database, settings, run_id):
        raise NotFound(f"run {run_id} is not in the trash", field="run_id", allowed="a run of GET /api/trash")


def purge_now(database: Database, settings: Settings, run_id: int) -> bool:
    """Delete a run of the trash for good; False where it is not there."""
    try:
        return purge(database, settings, run_id)
    except (StoreError, ValueError) as error:  # the store is away, or its package is not installed
        log.warning("it is deleted for good later: %s", error, extra={"run": run_id})
        return True  # it is beyond bringing back, and the housekeeping goes on with it


def shown_trash(session: Session, settings: Settings, cursor: str | None, limit: int) -> dict[str, Any]:
    """TrashAnswer. Raises Invalid."""
    runs = trash_page(session, limit=limit + 1, before=_position(cursor))
    kept, trash = occupied(session)
    shown = [
        {name: getattr(run, name) for name in ("id", "name", "tags", "status", "bytes_stored", "deleted_at", "deleted_by")}
        | {"until": (run.deleted_at or 0.0) + settings.trash_hours * HOUR, "task": run.config["task"]["name"]}
        for run in runs[:limit]
    ]
    more = len(runs) > limit
    return {
        "runs": shown, "next_cursor": f"{shown[-1]['deleted_at']!r}-{shown[-1]['id']}" if more else None,
        "hours": settings.trash_hours, "kept": vars(kept), "trash": vars(trash),
    }  # fmt: skip


def _position(cursor: str | None) -> tuple[float, int] | None:
    if cursor is None:
        return None
    if (match := CURSOR.fullmatch(cursor)) is None:
        raise Invalid(f"cursor {cursor[:40]!r} is not one that this list gave out", field="cursor", allowed="next_cursor")
    return float(match[1]), int(match[2])
