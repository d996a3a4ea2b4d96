"""The fence of a run: each write names its attempt and is refused unless that attempt owns the run; and the run's history."""

from __future__ import annotations

import time
from typing import Any, cast

from sqlalchemy import Table, and_, select
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from server.database.models import Base, Run, Transition


class LeaseLost(RuntimeError):
    """This attempt no longer owns the run: it ended, was cancelled, or another worker has it. Stop writing."""


def hold(session: Session, run_id: int, attempt: int) -> Run:
    """The run's row, locked to the end of the transaction, if `attempt` still owns it; else raises LeaseLost."""
    run = session.scalars(select(Run).where(fence(run_id, attempt)).with_for_update().execution_options(populate_existing=True))
    if (row := run.one_or_none()) is None:
        raise LeaseLost(f"run {run_id} is not running under attempt {attempt}")
    return row


def hold_attempt(session: Session, run_id: int, attempt: int) -> Run:
    """The run's row, locked, while no later attempt has begun, also after its end: for what an attempt printed last.

    Raises LeaseLost.
    """
    newest = select(Run).where(Run.id == run_id, Run.attempt == attempt).with_for_update()
    if (row := session.scalars(newest.execution_options(populate_existing=True)).one_or_none()) is None:
        raise LeaseLost(f"attempt {attempt} is not the newest of run {run_id}")
    return row


def add_transition(session: Session, run: Run, reason: str, *, truncated_from: int | None = None) -> int:
    """Write the run's present status into its history as the next event; `run` is locked by the caller."""
    run.seq += 1
    session.add(
        Transition(
            run_id=run.id,
            seq=run.seq,
            status=run.status,
            reason=reason,
            attempt=run.attempt,
            step=run.step,
            truncated_from=truncated_from,
            at=time.time(),
            worker=run.owner,
        )
    )
    session.flush()
    return run.seq


def fence(run_id: int, attempt: int) -> Any:
    """Whether `attempt` still owns the run, as a condition of a statement."""
    return and_(Run.id == run_id, Run.attempt == attempt, Run.status == "running")


def insert_into(session: Session, table: type[Base]) -> Any:
    """INSERT of this engine, with its ON CONFLICT; keys of its rows are column names."""
    return (postgres_insert if session.get_bind().dialect.name == "postgresql" else sqlite_insert)(cast(Table, table.__table__))
