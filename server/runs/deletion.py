"""Deleting a run with everything recorded of it, in pieces: however long it was, no statement takes long or locks much."""

from __future__ import annotations

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import FINAL, AlertRow, BlockRow, CheckpointRow, Run
from server.runs.lifecycle import NotAllowed

ROWS = 500  # deleted at once: half a second even where each holds megabytes


def delete_run(database: Database, run_id: int) -> None:
    """Delete an ended run. Raises LookupError if there is none, NotAllowed if it has not ended.

    Its checkpoints go first: if it is resumed between two pieces, it begins anew and has no hole. A process that dies
    half-way leaves a run that can be deleted again.
    """
    with database.write() as session:
        _hold(session, run_id)
        session.execute(delete(CheckpointRow).where(CheckpointRow.run_id == run_id))
    while _piece(database, run_id):
        pass


def _piece(database: Database, run_id: int) -> bool:
    with database.write() as session:
        run = _hold(session, run_id)
        if _some_blocks(session, run_id) or _some_alerts(session, run_id):
            return True
        session.delete(run)  # what is left goes with it
        return False


def _some_blocks(session: Session, run_id: int) -> bool:
    own = BlockRow.run_id == run_id
    first = session.execute(select(BlockRow.group_name, BlockRow.level).where(own).limit(1)).one_or_none()
    if first is None:
        return False
    part = [own, BlockRow.group_name == first.group_name, BlockRow.level == first.level]
    bound = session.scalar(select(BlockRow.first_step).where(*part).order_by(BlockRow.first_step).offset(ROWS).limit(1))
    if bound is not None:
        part.append(BlockRow.first_step < bound)
    session.execute(delete(BlockRow).where(*part).execution_options(synchronize_session=False))
    return True


def _some_alerts(session: Session, run_id: int) -> bool:
    some = session.scalars(select(AlertRow.id).where(AlertRow.run_id == run_id).limit(ROWS)).all()
    session.execute(delete(AlertRow).where(AlertRow.id.in_(some)).execution_options(synchronize_session=False))
    return bool(some)


def _hold(session: Session, run_id: int) -> Run:
    run = session.scalars(select(Run).where(Run.id == run_id).with_for_update()).one_or_none()
    if run is None:
        raise LookupError(f"there is no run {run_id}")
    if run.status not in FINAL:
        raise NotAllowed(f"run {run_id} is {run.status}")
    return run
