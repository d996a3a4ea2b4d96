"""Forks continue from a checkpoint of another run with changed settings. Siblings are similar runs."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from sqlalchemy.orm import Session

from server.compare.siblings import siblings_json
from server.database.models import Run
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.api.runs import find_run, run_json
from server.http.schemas.forks import ForkList, ForkRequest, SiblingList
from server.http.schemas.queues import queue_columns
from server.http.schemas.runs import RunAnswer, RunId
from server.lifecycle.forking import begins_at, died_at, fork_run, forks_json, trouble_of
from server.settings import Settings
from stablessm_core.verdict.trouble import Trouble

router = APIRouter(prefix="/api/runs", tags=["runs"])


@router.post("/{run_id}/fork", status_code=201, response_model=RunAnswer)
def fork(
    run_id: RunId, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep, response: Response,
    request: ForkRequest | None = None,
) -> Any:  # fmt: skip
    """Continue from a checkpoint with changed settings: same weights, same batches, same step numbers.

    If the map changes, every eigenvalue keeps its value. Without changes the fork repeats the original bit for bit.
    """
    asked = request or ForkRequest()
    with database.read() as session:
        find_run(session, run_id)
    made = fork_run(
        database, settings, run_id, from_step=asked.from_step, changes=asked.changes, submitted_by=principal.token_id,
        user_id=principal.user_id, queue_columns=queue_columns(asked),
    )  # fmt: skip
    response.headers["Location"] = f"/api/runs/{made}"
    with database.read_autocommit() as session:
        return run_json(session, made, settings.lease_seconds)


@router.get("/{run_id}/forks", response_model=ForkList)
def forks(run_id: RunId, database: DatabaseDep, settings: SettingsDep) -> Any:
    """The forks of a run, and what each fork shows about the cause of the run's divergence."""
    with database.read() as session:
        run = find_run(session, run_id)
        return fork_list_json(session, run, settings, trouble_of(session, run))


@router.get("/{run_id}/siblings", response_model=SiblingList)
def siblings(run_id: RunId, database: DatabaseDep) -> Any:
    """Runs with the same task, model shape and number of steps that differ in map, optimizer or seed."""
    with database.read() as session:
        return sibling_list_json(session, find_run(session, run_id))


def fork_list_json(session: Session, run: Run, settings: Settings, trouble: Trouble | None) -> dict[str, Any]:
    """The ForkList of a run. trouble: `trouble_of` the run."""
    begin = begins_at(session, run, settings, trouble)
    return {
        "run_id": run.id,
        "died_at": died_at(session, run),
        "trouble": None if trouble is None else {"step": trouble.step, "kind": trouble.kind},
        "fork_from": begin,
        "begins_at": begin,
        "forks": forks_json(session, run, trouble),
    }


def sibling_list_json(session: Session, run: Run) -> dict[str, Any]:
    """The SiblingList of a run."""
    return {"run_id": run.id, "siblings": siblings_json(session, run)}
