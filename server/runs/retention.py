"""Retention: ended runs beyond the limits of the settings go to the trash by themselves, the oldest first.

Left alone are runs with a protected tag, runs that wait or train, and the runs of a sweep of which some still wait or train. What
is in the trash counts for no limit, although it occupies its room until it is purged.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import FINAL, NOT_IN_TRASH, Run
from server.runs.lifecycle import NotAllowed
from server.runs.trash import move_to_trash, occupied
from server.settings import Settings

DAY = 86_400.0
BY = "retention"

log = logging.getLogger("stablessm.trash")


@dataclass(frozen=True)
class Leaving:
    """An ended run that goes to the trash, and why."""

    run_id: int
    name: str | None
    ended_at: float
    bytes_stored: int
    reason: str


def apply_retention(database: Database, settings: Settings, *, most: int) -> int:
    """Move at most `most` runs to the trash; gives how many went."""
    with database.read() as session:
        leaving = [run for run, _ in zip(plan(session, settings), range(most), strict=False)]
    gone = 0
    for run in leaving:
        try:
            with database.write() as session:
                move_to_trash(session, run.run_id, by=BY, reason=run.reason)
        except (LookupError, NotAllowed):
            continue  # somebody was faster, or has resumed it
        gone += 1
        log.info("moved to the trash by retention: %s", run.reason, extra={"run": run.run_id})
    return gone


def plan(session: Session, settings: Settings) -> Iterator[Leaving]:
    """The runs that go to the trash now, the oldest end first."""
    if not (settings.retention_days or settings.retention_runs or settings.retention_bytes):
        return
    runs_over, bytes_over = _excess(session, settings)
    before = time.time() - settings.retention_days * DAY if settings.retention_days else 0.0
    ended_at = func.coalesce(Run.finished_at, Run.created_at)
    going_on = select(Run.sweep_id).where(Run.status.in_(("queued", "running")), Run.sweep_id.is_not(None))
    left_alone = Run.sweep_id.is_not(None) & Run.sweep_id.in_(going_on)
    chosen = select(Run.id, Run.name, ended_at.label("ended_at"), Run.bytes_stored, Run.tags)
    chosen = chosen.where(Run.status.in_(FINAL), NOT_IN_TRASH, ~left_alone).order_by(ended_at, Run.id)
    for run in session.execute(chosen.execution_options(yield_per=500)):
        if run.ended_at >= before and runs_over <= 0 and bytes_over <= 0:
            return  # those that follow are younger
        if {tag.lower() for tag in run.tags} & set(settings.retention_keep_tags):
            continue
        if run.ended_at < before:
            reason = f"it ended more than {settings.retention_days:g} days ago (STABLESSM_RETENTION_DAYS)"
        elif runs_over > 0:
            reason = f"more than {settings.retention_runs:,} ended runs are kept (STABLESSM_RETENTION_RUNS)"
        else:
            reason = f"the runs occupy more than {settings.retention_bytes:,} bytes (STABLESSM_RETENTION_BYTES)"
        runs_over, bytes_over = runs_over - 1, bytes_over - run.bytes_stored
        yield Leaving(run.id, run.name, run.ended_at, run.bytes_stored, reason)


def _excess(session: Session, settings: Settings) -> tuple[int, int]:
    """How many ended runs, and how many bytes, there are beyond the limits; 0 or less where there is no limit."""
    runs = bytes_stored = 0
    if settings.retention_runs:
        ended = select(func.count()).select_from(Run).where(Run.status.in_(FINAL), NOT_IN_TRASH)
        runs = (session.scalar(ended) or 0) - settings.retention_runs
    if settings.retention_bytes:
        bytes_stored = occupied(session)[0].bytes_stored - settings.retention_bytes
    return runs, bytes_stored
