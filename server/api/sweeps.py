"""Sweeps: a grid of runs from one base."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from sqlalchemy.orm import Session

from server.answers import sweep_answer
from server.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.errors import NotFound
from server.models import Sweep
from server.schemas import SweepAnswer, SweepId, SweepRequest
from server.schemas_queues import columns
from server.submission import submit_sweep

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
        database, settings, request.base, request.grid, submitted_by=principal.token_id, place=columns(request)
    )
    return show(sweep_id, database)


@router.get("/{sweep_id}", response_model=SweepAnswer)
def show(sweep_id: SweepId, database: DatabaseDep) -> Any:
    """A sweep with all its runs."""
    with database.read() as session:
        return sweep_answer(session, find_sweep(session, sweep_id))
