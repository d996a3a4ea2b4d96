"""JSON of one sweep with its runs, and of the list of sweeps with counts of how their runs ended."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import and_, case, exists, func, select
from sqlalchemy.orm import Session

from server.compare.aggregation import STABLE, UNSTABLE
from server.database.models import NOT_IN_TRASH, Run, SearchRow, Sweep
from server.lifecycle.answers import run_rows, runs_json, runs_json_bytes
from server.lifecycle.run_fields import FINITE, STEPS, SWEEP_NAME
from server.lifecycle.searches import decisions_json
from server.lifecycle.submitters import SUBMITTER
from stablessm_core.telemetry.statuses import OPEN

MAX_LIMIT = 200


def sweep_json(session: Session, sweep: Sweep, lease_seconds: float, *, most: int | None = None) -> dict[str, Any]:
    """The sweep as a SweepAnswer; with `most`, only with its first runs."""
    runs = runs_json(session, run_rows(session, Run.sweep_id == sweep.id, most=most), lease_seconds)
    return _facts_json(session, sweep) | {"runs": runs}


def sweep_json_parts(session: Session, sweep: Sweep, lease_seconds: float) -> tuple[dict[str, Any], list[bytes]]:
    """The SweepAnswer without its runs, and each run as JSON text."""
    return _facts_json(session, sweep), runs_json_bytes(session, run_rows(session, Run.sweep_id == sweep.id), lease_seconds)


def _facts_json(session: Session, sweep: Sweep) -> dict[str, Any]:
    return _summaries_json(session, [sweep])[0] | {"decisions": decisions_json(session, sweep.id)}


def sweep_list_json(
    session: Session, *, q: str = "", project: str = "", cursor: int | None = None, limit: int = 50
) -> dict[str, Any]:
    """A SweepList: the sweeps with ids below `cursor` whose name contains `q`, newest first. project: only sweeps with runs of
    this project."""
    chosen = select(Sweep).order_by(Sweep.id.desc()).limit(limit + 1)
    if q:
        chosen = chosen.where(func.lower(SWEEP_NAME).contains(q.lower(), autoescape=True))
    if project:
        chosen = chosen.where(exists().where(Run.sweep_id == Sweep.id, Run.project == project, NOT_IN_TRASH))
    if cursor is not None:
        chosen = chosen.where(Sweep.id < cursor)
    found = session.scalars(chosen).all()
    more = len(found) > limit
    return {"sweeps": _summaries_json(session, found[:limit]), "next_cursor": found[limit - 1].id if more else None}


def name_of(sweep: Sweep) -> str | None:
    """The sweep's name, else the name in its base configuration."""
    return sweep.name or sweep.base.get("name")


def _summaries_json(session: Session, sweeps: Sequence[Sweep]) -> list[dict[str, Any]]:
    numbers = [sweep.id for sweep in sweeps]
    counted, users = _counted(session, numbers), _users(session, numbers)
    etas = _etas(session, [number for number in numbers if counted[number]["open"]])
    searches = session.execute(select(SearchRow.sweep_id, SearchRow.search).where(SearchRow.sweep_id.in_(numbers)))
    search_of = {row.sweep_id: row.search for row in searches}
    return [
        {
            "id": sweep.id,
            "url": f"/sweeps/{sweep.id}",
            "name": name_of(sweep),
            "base": sweep.base,
            "grid": sweep.grid,
            "search": search_of.get(sweep.id),
            "created_at": sweep.created_at,
            "submitted_by": sweep.submitted_by,
            "user": users.get(sweep.id, (None, ""))[0],
            "project": users.get(sweep.id, (None, ""))[1],
            **counted[sweep.id],
            "running": counted[sweep.id]["statuses"].get("running", 0),
            "eta_seconds": etas.get(sweep.id),
        }
        for sweep in sweeps
    ]


def _counted(session: Session, sweep_ids: Collection[int]) -> dict[int, dict[str, Any]]:
    """The number of runs of each sweep, in total, by status and by outcome, from one query."""
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


def _etas(session: Session, sweep_ids: Collection[int]) -> dict[int, float]:
    """For each sweep, the seconds until its last run ends; a sweep is left out if this is unknown.

    The ended runs took `seconds` for `done` training steps. The running runs occupy that many lanes. The rest of the steps is
    shared by these lanes, but no run can be shared.
    """
    ended = and_(Run.finished_at.is_not(None), Run.started_at.is_not(None), Run.status.not_in(OPEN))
    rest = case((Run.status.in_(OPEN), STEPS - Run.step), else_=0)
    chosen = select(
        Run.sweep_id,
        func.sum(case((ended, Run.finished_at - Run.started_at), else_=0.0)),
        func.sum(case((ended, Run.step), else_=0)),
        func.sum(case((Run.status == "running", 1), else_=0)),
        func.sum(rest),
        func.max(rest),
    )
    found = {}
    for number, seconds, done, lanes, left, longest in session.execute(
        chosen.where(Run.sweep_id.in_(sweep_ids), NOT_IN_TRASH).group_by(Run.sweep_id)
    ):
        if number is not None and done and lanes:
            found[number] = float(seconds) / int(done) * max(int(left) / int(lanes), int(longest))
    return found


def _users(session: Session, sweep_ids: Collection[int]) -> dict[int, tuple[str, str]]:
    """(name of the user who submitted it, project) of each sweep, taken from its first run, because all its runs are submitted
    together."""
    first = select(func.min(Run.id)).where(Run.sweep_id.in_(sweep_ids)).group_by(Run.sweep_id)
    found = session.execute(select(Run.sweep_id, SUBMITTER, Run.project).where(Run.id.in_(first)))
    return {number: (user, project) for number, user, project in found if number is not None}
