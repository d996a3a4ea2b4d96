"""Fencing, and the status history of a run. Each write to a run names an attempt and is refused unless that attempt owns the
run."""

from __future__ import annotations

import time
from typing import Any, cast

from sqlalchemy import Table, and_, select
from sqlalchemy.dialects.postgresql import insert as postgres_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.orm import Session

from server.database.models import Base, Run, Transition


class LeaseLost(RuntimeError):
    """This attempt no longer owns the run: the run is not running, or a later attempt owns it. The caller must stop writing."""


def lock_run(session: Session, run_id: int, attempt: int) -> Run:
    """The run's row, locked until the end of the transaction. Raises LeaseLost if `attempt` no longer owns the run."""
    run = session.scalars(select(Run).where(fence(run_id, attempt)).with_for_update().execution_options(populate_existing=True))
    if (row := run.one_or_none()) is None:
        raise LeaseLost(f"run {run_id} is not running under attempt {attempt}")
    return row


def lock_attempt(session: Session, run_id: int, attempt: int) -> Run:
    """The run's row, locked, if no later attempt has started. The run may have ended already: an attempt's last output may arrive
    after the run's end.

    Raises LeaseLost.
    """
    newest = select(Run).where(Run.id == run_id, Run.attempt == attempt).with_for_update()
    if (row := session.scalars(newest.execution_options(populate_existing=True)).one_or_none()) is None:
        raise LeaseLost(f"attempt {attempt} is not the newest of run {run_id}")
    return row


def add_transition(session: Session, run: Run, reason: str, *, truncated_from: int | None = None) -> int:
    """Add the run's current status to its history as the next event; returns the event's number. The caller has locked the run's
    row."""
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
    """The SQL condition that `attempt` still owns the run."""
    return and_(Run.id == run_id, Run.attempt == attempt, Run.status == "running")


def insert_into(session: Session, table: type[Base]) -> Any:
    """An INSERT statement in this database's dialect, with support for ON CONFLICT. Use column names, not attribute names, as
    the keys of its rows."""
    return (postgres_insert if session.get_bind().dialect.name == "postgresql" else sqlite_insert)(cast(Table, table.__table__))
