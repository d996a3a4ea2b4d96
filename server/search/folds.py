"""The list of runs with each sweep as one row: which run stands for a sweep, and how many of a sweep's runs are listed."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run

MAX_OPENED = 200  # maximum number of runs shown below the row of an opened sweep


def stands_for_its_sweep(conditions: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
    """The condition that a run belongs to no sweep, or is the newest run of its sweep that meets the conditions."""
    of_sweeps = select(func.max(Run.id)).where(Run.sweep_id.is_not(None), NOT_IN_TRASH, *conditions)
    return or_(Run.sweep_id.is_(None), Run.id.in_(of_sweeps.group_by(Run.sweep_id).correlate(None)))


def count_by_status(
    session: Session, sweeps: Collection[int], conditions: Sequence[ColumnElement[bool]]
) -> dict[int, dict[str, int]]:  # fmt: skip
    """For each of these sweeps, the number of its runs that meet the conditions, by status."""
    found: dict[int, dict[str, int]] = {sweep: {} for sweep in sweeps}
    chosen = select(Run.sweep_id, Run.status, func.count()).where(Run.sweep_id.in_(sweeps), NOT_IN_TRASH, *conditions)
    rows: Any = session.execute(chosen.group_by(Run.sweep_id, Run.status).order_by(Run.status))
    for sweep, status, count in rows:
        found[sweep][status] = count
    return found


def runs_of(sweep: int, conditions: Sequence[ColumnElement[bool]]) -> ColumnElement[bool]:
    """The condition that a run belongs to the sweep and meets the conditions; true for the first MAX_OPENED runs."""
    first = select(Run.id).where(Run.sweep_id == sweep, NOT_IN_TRASH, *conditions).order_by(Run.id).limit(MAX_OPENED)
    return Run.id.in_(first.correlate(None))
