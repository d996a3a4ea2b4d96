"""Sweeps as the API answers them: one with its runs, and the list of all with what became of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import case, func, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, Run, Sweep
from server.runs.aggregation import FINITE, OPEN, STABLE, UNSTABLE
from server.runs.answers import SWEEP_NAME, run_answers, run_rows
from server.runs.submitters import SUBMITTER

MAX_LIMIT = 200


def sweep_answer(session: Session, sweep: Sweep, lease_seconds: float) -> dict[str, Any]:
    """SweepAnswer."""
    runs = run_answers(session, run_rows(session, Run.sweep_id == sweep.id, NOT_IN_TRASH), lease_seconds)
    return _summary(session, [sweep])[0] | {"runs": runs}


def sweep_page(session: Session, *, q: str = "", cursor: int | None = None, limit: int = 50) -> dict[str, Any]:
    """SweepList: sweeps in whose name `q` occurs, the newest first, from before the sweep `cursor` on."""
    chosen = select(Sweep).order_by(Sweep.id.desc()).limit(limit + 1)
    if q:
        chosen = chosen.where(func.lower(SWEEP_NAME).contains(q.lower(), autoescape=True))
    if cursor is not None:
        chosen = chosen.where(Sweep.id < cursor)
    found = session.scalars(chosen).all()
    more = len(found) > limit
    return {"sweeps": _summary(session, found[:limit]), "next_cursor": found[limit - 1].id if more else None}


def name_of(sweep: Sweep) -> str | None:
    """Its own name, else that of its base configuration."""
    return sweep.name or sweep.base.get("name")


def _summary(session: Session, sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    numbers = [sweep.id for sweep in sweeps]
    counted, users = _counted(session, numbers), _users(session, numbers)
    return [
        {
            "id": sweep.id,
            "url": f"/sweeps/{sweep.id}",
            "name": name_of(sweep),
            "base": sweep.base,
            "grid": sweep.grid,
            "created_at": sweep.created_at,
            "submitted_by": sweep.submitted_by,
            "user": users.get(sweep.id),
            **counted[sweep.id],
        }
        for sweep in sweeps
    ]


def _counted(session: Session, sweep_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """By sweep: how many runs have each status, and each outcome; how many there are. One query."""
    counted: dict[int, dict[str, Any]] = {
        number: {"statuses": {}} | dict.fromkeys(("finite", "stable", "unstable", "lost", "open", "total"), 0)
        for number in sweep_ids
    }
    sums = [func.sum(case((condition, 1), else_=0)) for condition in (FINITE, STABLE, UNSTABLE)]
    chosen = select(Run.sweep_id, Run.status, func.count(), *sums).where(Run.sweep_id.in_(sweep_ids), NOT_IN_TRASH)
    for number, status, runs, *sound in session.execute(chosen.group_by(Run.sweep_id, Run.status).order_by(Run.status)):
        of_sweep = counted[number]
        of_sweep["statuses"][status] = runs
        finite, stable, unstable = map(int, sound)
        parts = {"finite": finite, "stable": stable, "unstable": unstable, "total": runs}
        parts |= {"open": runs} if status in OPEN else {"lost": runs - finite}
        for name, count in parts.items():
            of_sweep[name] += count
    return counted


def _users(session: Session, sweep_ids: Collection[int]) -> dict[int, str]:
    """By sweep: who submitted its first run, and so all of them."""
    first = select(func.min(Run.id)).where(Run.sweep_id.in_(sweep_ids)).group_by(Run.sweep_id)
    found = session.execute(select(Run.sweep_id, SUBMITTER).where(Run.id.in_(first)))
    return {number: user for number, user in found if number is not None}
