"""Stores a run's log in the database, as pieces of text with positions, and the run's tracebacks. Only the start and the end of
the log are kept.

Positions count the characters of the log over all attempts; for omitted text they count bytes. A reader requests the text after
the position that it has reached.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from server.database.fence import insert_into, lock_attempt
from server.database.models import LogRow, TracebackRow

KEPT_FIRST = 64 << 10  # number of characters kept at the start of a run's log
KEPT_LAST = 192 << 10  # number of characters kept at the end of the log; pieces in between are deleted
PIECE = 8 << 10
MAX_TRACEBACK = 16 << 10


@dataclass(frozen=True)
class Piece:
    """Text of one attempt from position `start` to `end`. `cut` is the number of deleted characters before this text."""

    attempt: int
    start: int
    text: str
    at: float
    cut: int

    @property
    def end(self) -> int:
        return self.start + len(self.text)


def log_end(session: Session, run_id: int) -> int:
    """The position after the last stored character."""
    last = _last(session, run_id)
    return last.start + len(last.text) if last is not None else 0


def append_log(session: Session, run_id: int, attempt: int, start: int, text: str) -> int:
    """Store output of the attempt at position `start` and return the end position of the stored log. A repeated call changes
    nothing.

    A `start` after the end of the stored log means that the text in between was omitted. Raises LeaseLost once a later attempt
    has started.
    """
    lock_attempt(session, run_id, attempt)
    last = _last(session, run_id)
    end = last.start + len(last.text) if last is not None else 0
    if end > start:
        return end  # stored by an earlier call whose response was lost
    if last is not None and end == start and last.attempt == attempt and len(last.text) < PIECE:
        room = PIECE - len(last.text)
        last.text, last.at = last.text + text[:room], time.time()
        start, text = start + len(text[:room]), text[room:]
    for offset in range(0, len(text), PIECE):
        piece = text[offset : offset + PIECE]
        session.add(LogRow(run_id=run_id, start=start + offset, attempt=attempt, text=piece, at=time.time()))
    session.flush()
    end = start + len(text)
    middle = (LogRow.start >= KEPT_FIRST, LogRow.start + func.length(LogRow.text) <= end - KEPT_LAST)
    session.execute(delete(LogRow).where(LogRow.run_id == run_id, *middle).execution_options(synchronize_session=False))
    return end


def read_log(session: Session, run_id: int, after: int = 0) -> list[Piece]:
    """The stored pieces of the run's log after this position, in order."""
    rows = session.execute(
        select(LogRow.attempt, LogRow.start, LogRow.text, LogRow.at)
        .where(LogRow.run_id == run_id, LogRow.start + func.length(LogRow.text) > after)
        .order_by(LogRow.start)
    ).all()
    pieces, position = [], after
    for row in rows:
        start = max(row.start, after)
        text = row.text[start - row.start :]
        pieces.append(Piece(row.attempt, start, text, row.at, cut=start - position))
        position = start + len(text)
    return pieces


def store_traceback(session: Session, run_id: int, attempt: int, text: str) -> None:
    """Store the traceback of a failed attempt, in the same transaction as the failure. The caller has locked the run."""
    row = {"run_id": run_id, "attempt": attempt, "text": _shortened(text), "at": time.time()}
    session.execute(insert_into(session, TracebackRow).values(row).on_conflict_do_nothing())


def read_tracebacks(session: Session, run_id: int) -> list[TracebackRow]:
    """The tracebacks of the run's attempts, oldest first."""
    return list(session.scalars(select(TracebackRow).where(TracebackRow.run_id == run_id).order_by(TracebackRow.attempt)))


def _last(session: Session, run_id: int) -> LogRow | None:
    return session.scalars(select(LogRow).where(LogRow.run_id == run_id).order_by(LogRow.start.desc()).limit(1)).first()


def _shortened(text: str) -> str:
    if len(text) <= MAX_TRACEBACK:
        return text
    first, last = MAX_TRACEBACK // 4, MAX_TRACEBACK * 3 // 4
    return f"{text[:first]}\n… {len(text) - first - last:,} characters left out …\n{text[-last:]}"
