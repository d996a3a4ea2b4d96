"""The autopsy of a run: one of its steps, trained again with instruments."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy import select

from server.database.models import Run
from server.errors import Conflict
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import find_run
from server.http.schemas.autopsy import AutopsyAnswer, AutopsyRequest
from server.http.schemas.runs import RunId
from server.lifecycle.autopsies import OFF, autopsy_json, request_autopsy
from server.lifecycle.submitters import check_own

router = APIRouter(prefix="/api/runs", tags=["runs"])


@router.get("/{run_id}/autopsy", response_model=AutopsyAnswer)
def autopsy(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> Any:
    """What a worker measured when it trained a step of the run again, bit for bit, with instruments: the batch, the first
    operation whose result is not finite, the same step in float64, and how the run continues with one thing changed.

    A worker does this for each run that diverges. All findings are null until `state` is `done`, and if `refused` gives a
    reason.
    """
    with database.read() as session:
        return autopsy_json(session, find_run(session, run_id), on=settings.autopsy)


@router.post("/{run_id}/autopsy", status_code=202, response_model=AutopsyAnswer)
def ask_for_autopsy(
    run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, request: AutopsyRequest | None = None
) -> Any:
    """Queue the autopsy of an ended run, in place of an earlier one."""
    with database.write() as session:
        run = find_run(session, run_id)
        check_own(principal, run)
        if not settings.autopsy:
            raise Conflict(f"{OFF} on this server", field="state", allowed="autopsies with STABLESSM_AUTOPSY=on")
        session.scalars(select(Run).where(Run.id == run_id).with_for_update().execution_options(populate_existing=True)).one()
        request_autopsy(session, run, step=request.step if request else None, by=principal.user or principal.name)
        session.flush()
        return autopsy_json(session, run, on=True)
