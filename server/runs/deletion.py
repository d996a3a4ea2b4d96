"""Purging a run from the trash, in pieces: however long it was, no statement takes long or locks much.

First the row in `deleted_runs`, then what was recorded, then what lies elsewhere, the run's own row last. A process that dies
half-way leaves a run in the trash whose purge goes on later. Once its row is gone every machine removes the run's folder
(server/runs/folders.py).
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
from server.runs.trash import went_on
from server.settings import Settings

ROWS = 500  # deleted at once: half a second even where each holds megabytes
KNOWN_FILES = 20  # of a run's checkpoints, by which its folder is known

log = logging.getLogger("stablessm.trash")


def purge(database: Database, settings: Settings | None, run_id: int) -> bool:
    """Delete a run of the trash for good; True when it is gone, False if it has left the trash meanwhile.

    Without settings nothing is removed that was stored outside the database.
    """
    with database.write() as session:
        run = _hold(session, run_id)
        if run is None:
            return False
        newest = select(CheckpointRow.path, CheckpointRow.sha256).where(CheckpointRow.run_id == run_id)
        files = [list(row) for row in session.execute(newest.order_by(CheckpointRow.created_at.desc()).limit(KNOWN_FILES))]
        known = {"run_id": run_id, "at": time.time(), "files": files}
        session.execute(insert_into(session, DeletedRun).values(known).on_conflict_do_nothing(index_elements=["run_id"]))
        # if an older program resumes it between two pieces, it begins anew and has no hole
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
            session.delete(run)  # what is left of it goes with it
    return run is not None


def remove_stored(settings: Settings, run_id: int) -> None:
    """Remove what the run has stored outside the database and the machines' folders. May be called again for the same run.

    Called for every run that is purged, by a server. If it raises, the run stays in the trash and is purged later.
    """
    if settings.checkpoint_store is not None:
        CheckpointStore(settings.checkpoint_store).remove_run(run_id)


def _piece(database: Database, run_id: int) -> bool | None:
    """True while there may be more; None if the run has left the trash."""
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
    """The run, locked, if it is in the trash; one that an older program has resumed meanwhile is taken out of it."""
    run = session.scalars(select(Run).where(Run.id == run_id).with_for_update()).one_or_none()
    if run is None or run.deleted_at is None:
        return None
    if went_on(session, run):
        log.warning("not deleted: it was resumed by an older version while it was in the trash", extra={"run": run_id})
        run.deleted_at = run.deleted_by = None
        return None
    return run
