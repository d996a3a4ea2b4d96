"""Sweeps: a grid of runs from one base."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session

from server.database.models import Sweep
from server.errors import NotFound
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.schemas.queues import columns
from server.http.schemas.runs import SweepAnswer, SweepId, SweepRequest
from server.runs import lifecycle
from server.runs.answers import sweep_answer
from server.runs.submission import submit_sweep

router = APIRouter(prefix="/api/sweeps", tags=["sweeps"])


def find_sweep(session: Session, sweep_id: int) -> Sweep:
    sweep = session.get(Sweep, sweep_id)
    if sweep is None:
        raise NotFound(f"there is no sweep {sweep_id}", field="sweep_id")
    return sweep


@router.post("", status_code=201, response_model=SweepAnswer)
def submit(request: SweepRequest, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep) -> Any:
    """Queue one run per combination of the grid; all of them or, if one is refused, none."""
    sweep_id = submit_sweep(
        database, settings, request.base, request.grid, submitted_by=principal.token_id, user_id=principal.user_id,
        place=columns(request),
    )  # fmt: skip
    return show(sweep_id, database, settings)


@router.get("/{sweep_id}", response_model=SweepAnswer)
def show(sweep_id: SweepId, database: DatabaseDep, settings: SettingsDep) -> Any:
    """A sweep with all its runs."""
    with database.read() as session:
        return sweep_answer(session, find_sweep(session, sweep_id), settings.lease_seconds)


@router.post("/{sweep_id}/cancel", response_model=SweepAnswer)
def cancel(sweep_id: SweepId, database: DatabaseDep, settings: SettingsDep) -> Any:
    """Stop every run of a sweep that waits or trains, as `POST /api/runs/{id}/cancel` does; the others stay as they are."""
    with database.write() as session:
        find_sweep(session, sweep_id)
        lifecycle.cancel_sweep(session, sweep_id)
    return show(sweep_id, database, settings)
