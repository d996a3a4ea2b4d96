"""What a run occupies, `runs.bytes_stored`: the payloads of its blocks in the database and its checkpoint files on disk.

Kept by those who write, in the transaction of the write: a flush adds its payloads, a checkpoint its file (and takes off the file
that its attempt removes for it: an attempt keeps its newest CHECKPOINT_FILES, and with these removes those of earlier attempts).
Where steps are deleted or blocks are merged the whole is counted anew. So it is exact, but for: what a row costs beside its
payload (less than 200 bytes a block), the log, what earlier attempts left on other machines, and whatever older programs wrote:
those blocks count once they are merged, their files never.
"""

from __future__ import annotations

from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from server.database.models import BlockRow, CheckpointRow, Run

CHECKPOINT_FILES = 2
MOST_ROWS = 100


def recount(session: Session, run_id: int) -> None:
    """Set the run's `bytes_stored` from its rows; its row is locked by the caller. Sizes are read, not payloads."""
    payloads = session.scalar(select(func.sum(func.length(BlockRow.payload))).where(BlockRow.run_id == run_id))
    total = int(payloads or 0) + checkpoint_bytes(session, run_id)
    statement = update(Run).where(Run.id == run_id).values(bytes_stored=total)
    session.execute(statement.execution_options(synchronize_session=False))


def checkpoint_bytes(session: Session, run_id: int) -> int:
    """Bytes of the run's checkpoint files that are kept: those of the newest attempts, until one has CHECKPOINT_FILES."""
    newest_first = select(CheckpointRow.attempt, CheckpointRow.bytes).where(CheckpointRow.run_id == run_id)
    newest_first = newest_first.order_by(CheckpointRow.attempt.desc(), CheckpointRow.step.desc()).limit(MOST_ROWS)
    kept: dict[int, list[int]] = {}
    for attempt, size in session.execute(newest_first):
        if attempt not in kept and any(len(files) == CHECKPOINT_FILES for files in kept.values()):
            break
        if len(files := kept.setdefault(attempt, [])) < CHECKPOINT_FILES:
            files.append(size)
    return sum(map(sum, kept.values()))
