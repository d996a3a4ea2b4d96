"""The bytes that a run occupies, `runs.bytes_stored`: the payloads of its blocks in the database and its checkpoint files.

Each write updates the number in its own transaction. A flush adds its payloads. A checkpoint adds its file and subtracts the
files that its attempt removes. An attempt keeps its newest CHECKPOINT_FILES files; once the attempt has that many files, it
also removes the files of earlier attempts. When steps are deleted or blocks are merged, everything is counted again. The number
does not include the other columns of a block's row (less than 200 bytes per block), the log, files of earlier attempts on other
machines, and data of older programs (their blocks count once they are merged, their files never).
"""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from server.database.models import BlockRow, CheckpointRow, Run

CHECKPOINT_FILES = 2
MOST_ROWS = 100


def recount(session: Session, run_id: int) -> None:
    """Set the run's `bytes_stored` from its rows. The caller has locked the run's row. Only sizes are read, no payloads."""
    payloads = session.scalar(select(func.sum(func.length(BlockRow.payload))).where(BlockRow.run_id == run_id))
    total = int(payloads or 0) + checkpoint_bytes(session, run_id)
    statement = update(Run).where(Run.id == run_id).values(bytes_stored=total)
    session.execute(statement.execution_options(synchronize_session=False))


def checkpoint_bytes(session: Session, run_id: int) -> int:
    """The size of the kept checkpoint files, in bytes. They belong to the newest attempts, back to the most recent attempt that
    has CHECKPOINT_FILES files."""
    newest_first = select(CheckpointRow.attempt, CheckpointRow.bytes).where(CheckpointRow.run_id == run_id)
    newest_first = newest_first.order_by(CheckpointRow.attempt.desc(), CheckpointRow.step.desc()).limit(MOST_ROWS)
    kept: dict[int, list[int]] = {}
    for attempt, size in session.execute(newest_first):
        if attempt not in kept and any(len(files) == CHECKPOINT_FILES for files in kept.values()):
            break
        if len(files := kept.setdefault(attempt, [])) < CHECKPOINT_FILES:
            files.append(size)
    return sum(map(sum, kept.values()))
