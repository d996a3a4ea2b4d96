"""The trash: a deleted run is hidden at once, can be restored for STABLESSM_TRASH_HOURS, and is then purged.

A run is in the trash while its `deleted_at` is set. Only ended runs can be moved to the trash. An older program does not
support the trash and shows such a run. If somebody resumes the run with the older program, the run leaves the trash when a
worker claims it or when its purge is due.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import and_, delete, func, or_, select
from sqlalchemy.orm import Session

from server.database.fence import add_transition
from server.database.models import NOT_IN_TRASH, DeletedRun, Run, Transition
from server.lifecycle.transitions import NotAllowed
from stablessm_core.telemetry.statuses import AT_REST

HOUR = 3600.0


@dataclass(frozen=True)
class Occupied:
    """A number of runs, and the bytes that they occupy together."""

    runs: int
    bytes_stored: int


def move_to_trash(session: Session, run_id: int, *, by: str, reason: str = "") -> Run:
    """Put an ended run into the trash. Raises LookupError for a run that is missing or already in the trash, and NotAllowed
    for a run that has not ended."""
    run = _hold(session, run_id)
    if run is None or run.deleted_at is not None:
        raise LookupError(why_absent(run, run_id))
    if run.status not in AT_REST:
        raise NotAllowed(f"run {run_id} is {run.status}")
    number = add_transition(session, run, f"moved to the trash by {by}" + (f": {reason}" if reason else ""))
    run.deleted_at, run.deleted_by = session.get_one(Transition, (run_id, number)).at, by[:200]
    session.execute(delete(DeletedRun).where(DeletedRun.run_id == run_id))  # left over from a purge that a resume interrupted
    return run


def take_out(session: Session, run_id: int, *, by: str) -> Run:
    """Restore a run from the trash. Raises LookupError if there is no such run, and NotAllowed if the run is not in the trash
    or is being purged."""
    run = _hold(session, run_id)
    if run is None:
        raise LookupError(why_absent(None, run_id))
    if run.deleted_at is None:
        raise NotAllowed(f"run {run_id} is not in the trash")
    if session.get(DeletedRun, run_id) is not None:
        raise NotAllowed(f"run {run_id} is already being deleted for good")
    run.deleted_at = run.deleted_by = None
    add_transition(session, run, f"restored from the trash by {by}")
    return run


def went_on(session: Session, run: Run) -> bool:
    """True if an older program has resumed a run in the trash: the run then has an event that is newer than the deletion."""
    newest = session.get(Transition, (run.id, run.seq))
    return run.status not in AT_REST or newest is None or newest.at != run.deleted_at


def why_absent(run: Run | None, run_id: int) -> str:
    """The reason why this run cannot be found."""
    if run is None or run.deleted_at is None:
        return f"there is no run {run_id}"
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(run.deleted_at))
    return f"run {run_id} is in the trash: {run.deleted_by or 'somebody'} deleted it at {at}"


def due(session: Session, hours: float, limit: int) -> list[int]:
    """The runs whose time in the trash is over or whose purge has begun, in the order of their deletion."""
    begun = Run.id.in_(select(DeletedRun.run_id))
    over = or_(Run.deleted_at <= time.time() - hours * HOUR, begun)
    return list(session.scalars(select(Run.id).where(Run.deleted_at.is_not(None), over).order_by(Run.deleted_at).limit(limit)))


def trash_page(session: Session, *, limit: int, before: tuple[float, int] | None = None) -> list[Run]:
    """Runs in the trash, last deleted first. before: (deleted_at, id) of the last run on the previous page."""
    chosen = select(Run).where(Run.deleted_at.is_not(None))
    if before is not None:
        at, number = before
        chosen = chosen.where(or_(Run.deleted_at < at, and_(Run.deleted_at == at, Run.id < number)))
    return list(session.scalars(chosen.order_by(Run.deleted_at.desc(), Run.id.desc()).limit(limit)))


def occupied(session: Session) -> tuple[Occupied, Occupied]:
    """The number and size of the runs outside the trash, and of the runs in the trash."""
    return _sum(session, NOT_IN_TRASH), _sum(session, Run.deleted_at.is_not(None))


def _sum(session: Session, condition: Any) -> Occupied:
    runs, stored = session.execute(select(func.count(), func.sum(Run.bytes_stored)).where(condition)).one()
    return Occupied(runs, int(stored or 0))


def _hold(session: Session, run_id: int) -> Run | None:
    chosen = select(Run).where(Run.id == run_id).with_for_update().execution_options(populate_existing=True)
    return session.scalars(chosen).one_or_none()
