"""Moves runs to the trash, restores them from it, or deletes them for good."""

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
from server.http.api.runs import find_run, run_json
from server.http.schemas.runs import RunAnswer, RunId
from server.http.schemas.trash import TrashAnswer
from server.keep.deletion import purge
from server.keep.trash import HOUR, move_to_trash, occupied, take_out, trash_page
from server.lifecycle.transitions import NotAllowed
from server.settings import Settings
from stablessm_core.spec.paths import value_at

log = logging.getLogger("stablessm.trash")
router = APIRouter(prefix="/api", tags=["runs"])

CURSOR = re.compile(r"(\d{1,12}(?:\.\d{1,9})?)-(\d{1,18})")
Cursor = Annotated[str | None, Query(max_length=60, description="`next_cursor` of the previous page.")]


@router.delete("/runs/{run_id}", status_code=204)
def delete(run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> None:
    """Move an ended run to the trash. The run can be restored for STABLESSM_TRASH_HOURS. Then the run, its recorded values and
    its folder on every machine are deleted for good.
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
    """Restore a run from the trash."""
    with database.write() as session:
        try:
            take_out(session, run_id, by=principal.user or principal.name)
        except NotAllowed as error:
            raise Conflict(str(error), field="run_id", allowed="a run of GET /api/trash") from None
        except LookupError as error:
            raise NotFound(str(error), field="run_id") from None
    with database.read_autocommit() as session:
        answer = run_json(session, run_id, settings.lease_seconds)
    request.state.attempt = answer["attempt"]  # the log line of this request contains the attempt
    return answer


@router.get("/trash", response_model=TrashAnswer)
def trash(
    database: DatabaseDep, settings: SettingsDep, cursor: Cursor = None, limit: Annotated[int, Query(ge=1, le=500)] = 100
) -> Any:
    """The runs in the trash, most recently deleted first, with the time until which each run can be restored. The response also
    contains the space that all runs occupy."""
    with database.read() as session:
        return trash_json(session, settings, cursor, limit)


@router.delete("/trash/{run_id}", status_code=204)
def delete_for_good(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> None:
    """Delete a run in the trash for good, before its time in the trash is over."""
    if not purge_now(database, settings, run_id):
        raise NotFound(f"run {run_id} is not in the trash", field="run_id", allowed="a run of GET /api/trash")


def purge_now(database: Database, settings: Settings, run_id: int) -> bool:
    """Delete a run in the trash for good. Returns False if the run is not in the trash."""
    try:
        return purge(database, settings, run_id)
    except (StoreError, ValueError) as error:  # the store does not answer, or its package is not installed
        log.warning("cannot delete it for good yet: %s", error, extra={"run": run_id})
        return True  # the run can no longer be restored, and housekeeping will finish the deletion


def trash_json(session: Session, settings: Settings, cursor: str | None, limit: int) -> dict[str, Any]:
    """The TrashAnswer. Raises Invalid."""
    runs = trash_page(session, limit=limit + 1, before=_position(cursor))
    kept, trash = occupied(session)
    shown = [
        {name: getattr(run, name) for name in ("id", "name", "tags", "status", "bytes_stored", "deleted_at", "deleted_by")}
        | {"until": (run.deleted_at or 0.0) + settings.trash_hours * HOUR, "task": value_at(run.config, "task.name")}
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
        raise Invalid(f"cursor {cursor[:40]!r} does not come from this list", field="cursor", allowed="next_cursor")
    return float(match[1]), int(match[2])
