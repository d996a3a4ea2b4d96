"""The verdict on a run: how it ended, and why."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json
from sqlalchemy.orm import Session

from server.http.api.deps import DatabaseDep
from server.http.api.runs import find_run
from server.http.schemas.runs import RunId
from server.http.schemas.verdict import VerdictAnswer
from server.lifecycle.forking import died_at, forks_json
from server.lifecycle.verdicts import judge_run
from server.series.encoding import json_response
from stablessm_core.verdict import confirmation

router = APIRouter(prefix="/api/runs", tags=["runs"])


def verdict_json(session: Session, run_id: int) -> dict[str, Any]:
    """The VerdictAnswer of a run. Raises NotFound, DamagedPayload."""
    run = find_run(session, run_id)
    found = judge_run(session, run)
    died = died_at(session, run)
    if died is not None:
        found["confirmed"] = [
            confirmation(
                found, fork["changes"], run_id=fork["id"], status=fork["status"], step=fork["step"], from_step=fork["from_step"],
                died_at=died,
            )
            for fork in reversed(forks_json(session, run))
        ]  # fmt: skip
    return {"run_id": run_id, "status": run.status, **found}


@router.get("/{run_id}/verdict", response_model=VerdictAnswer)
def verdict(run_id: RunId, database: DatabaseDep) -> Response:
    """How the run ended, according to its recorded values: cause, order of events, evidence, and what to try. For a running
    run, the verdict covers the training so far.

    `cause` is null if all values are finite. `unstable` lists eigenvalues outside the stability boundary, whatever the cause.
    """
    with database.read() as session:
        return json_response(to_json(verdict_json(session, run_id), inf_nan_mode="strings"))
