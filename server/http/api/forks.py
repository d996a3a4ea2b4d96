"""Forks: a run goes on from a checkpoint of another with something changed; and the runs that are alike."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from server.database.models import Run
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import find_run, run_shown
from server.http.schemas.forks import ForkList, ForkRequest, SiblingList
from server.http.schemas.queues import columns
from server.http.schemas.runs import RunAnswer, RunId
from server.runs.forking import begins_at, died_at, fork_run, forks_of
from server.runs.siblings import siblings_of
from server.settings import Settings

router = APIRouter(prefix="/api/runs", tags=["runs"])


@router.post("/{run_id}/fork", status_code=201, response_model=RunAnswer)
def fork(
    run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, response: Response,
    request: ForkRequest | None = None,
) -> Any:  # fmt: skip
    """Go on from a checkpoint with something changed: same weights, same batches, the original's step numbers.

    Another map takes over every eigenvalue where it is. Without changes the original is repeated bit for bit.
    """
    asked = request or ForkRequest()
    with database.read() as session:
        find_run(session, run_id)
    made = fork_run(
        database, settings, run_id, from_step=asked.from_step, changes=asked.changes, submitted_by=principal.token_id,
        user_id=principal.user_id, place=columns(asked),
    )  # fmt: skip
    response.headers["Location"] = f"/api/runs/{made}"
    with database.glance() as session:
        return run_shown(session, made, settings.lease_seconds)


@router.get("/{run_id}/forks", response_model=ForkList)
def forks(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> Any:
    """The forks of a run, and what each of them says about why it died."""
    with database.read() as session:
        return fork_list(session, find_run(session, run_id), settings)


@router.get("/{run_id}/siblings", response_model=SiblingList)
def siblings(run_id: RunId, database: DatabaseDep) -> Any:
    """Runs with the same task, model shape and steps that differ in map, optimizer or seed."""
    with database.read() as session:
        return sibling_list(session, find_run(session, run_id))


def fork_list(session: Session, run: Run, settings: Settings) -> dict[str, Any]:
    """ForkList of a run."""
    begin, died = begins_at(session, run, settings), died_at(session, run)
    return {"run_id": run.id, "died_at": died, "begins_at": begin, "forks": forks_of(session, run)}


def sibling_list(session: Session, run: Run) -> dict[str, Any]:
    """SiblingList of a run."""
    return {"run_id": run.id, "siblings": siblings_of(session, run)}
