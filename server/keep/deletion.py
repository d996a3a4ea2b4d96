"""Purges a run from the trash in pieces, so that no statement takes long or locks many rows, however long the run was.

The order is: insert the row in `deleted_runs`, delete the recorded data, delete the data stored elsewhere, delete the run's row.
If the process dies before the end, the run stays in the trash and its purge continues later. Once the run's row is gone, every
machine removes the run's folder (server/keep/folders.py).
"""

from __future__ import annotations

import logging
import time

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from server.checkpoint_store import CheckpointStore
from server.database.connection import Database
from server.database.fence import insert_into
from server.database.models import AlertRow, BlockRow, CheckpointRow, DeletedRun, Run
from server.keep.trash import went_on
from server.settings import Settings

ROWS = 500  # rows per statement; deleting them takes half a second even if each row has megabytes
KNOWN_FILES = 20  # number of checkpoints by which a run's folder is identified

log = logging.getLogger("stablessm.trash")


def purge(database: Database, settings: Settings | None, run_id: int) -> bool:
    """Delete a run in the trash for good; returns True if the run was deleted, False if the run has left the trash in the
    meantime.

    Without settings, only the run's data in the database is deleted.
    """
    with database.write() as session:
        run = _hold(session, run_id)
        if run is None:
            return False
        newest = select(CheckpointRow.path, CheckpointRow.sha256).where(CheckpointRow.run_id == run_id)
        files = [list(row) for row in session.execute(newest.order_by(CheckpointRow.created_at.desc()).limit(KNOWN_FILES))]
        known = {"run_id": run_id, "at": time.time(), "files": files}
        session.execute(insert_into(session, DeletedRun).values(known).on_conflict_do_nothing(index_elements=["run_id"]))
        # an older program may resume the run between two pieces; without checkpoints, it starts at step 1 and leaves no gap
        session.execute(delete(CheckpointRow).where(CheckpointRow.run_id == run_id))
    more: bool | None = True
    while more:
        more = _piece(database, run_id)
    if more is None:
        return False
    if settings is not None:
        remove_stored(settings, run_id)
    with database.write() as session:
        run = _hold(session, run_id)
        if run is not None:
            session.delete(run)  # the database then deletes the run's rows in other tables
    return run is not None


def remove_stored(settings: Settings, run_id: int) -> None:
    """Remove the run's files from the checkpoint store, if the settings name a store. Repeated calls do no harm.

    A server calls this for every run that it purges. If this function raises, the run stays in the trash and is purged later.
    """
    if settings.checkpoint_store is not None:
        CheckpointStore(settings.checkpoint_store).remove_run(run_id)


def _piece(database: Database, run_id: int) -> bool | None:
    """Delete one piece of the run's data. Returns True if more data may be left, False if none is left, and None if the run has
    left the trash."""
    with database.write() as session:
        if _hold(session, run_id) is None:
            return None
        return _some_blocks(session, run_id) or _some_alerts(session, run_id)


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


def _hold(session: Session, run_id: int) -> Run | None:
    """Lock the row of the run and return it, if the run is in the trash. If an older program has resumed the run, take it out of
    the trash instead.
    """
    run = session.scalars(select(Run).where(Run.id == run_id).with_for_update()).one_or_none()
    if run is None or run.deleted_at is None:
        return None
    if went_on(session, run):
        log.warning("not deleted: an older version resumed it while it was in the trash", extra={"run": run_id})
        run.deleted_at = run.deleted_by = None
        return None
    return run
