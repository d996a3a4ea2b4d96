"""Retention: moves ended runs that exceed the limits of the settings to the trash, oldest first.

Retention keeps runs with a protected tag, runs that wait or train, and all runs of a sweep while one of these runs waits or
trains. Runs in the trash do not count towards the limits, although they occupy space until they are purged.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from sqlalchemy import Text, case, cast, func, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import NOT_IN_TRASH, Run
from server.database.single_runs import try_for_run
from server.keep.trash import move_to_trash, occupied
from server.lifecycle.reported import REPORTED
from server.lifecycle.transitions import NotAllowed
from server.settings import Settings
from stablessm_core.telemetry.statuses import AT_REST, OPEN

DAY = 86_400.0
BY = "retention"

log = logging.getLogger("stablessm.trash")


@dataclass(frozen=True)
class Leaving:
    """An ended run to move to the trash, and the reason."""

    run_id: int
    name: str | None
    ended_at: float
    bytes_stored: int
    reason: str


def apply_retention(database: Database, settings: Settings, *, most: int) -> int:
    """Move at most `most` runs to the trash and return the number of moved runs."""
    with database.read() as session:
        leaving = [run for run, _ in zip(plan(session, settings), range(most), strict=False)]
    return sum(try_for_run(run.run_id, "retention", partial(_move, database, run), False) for run in leaving)


def _move(database: Database, run: Leaving) -> bool:
    try:
        with database.write() as session:
            move_to_trash(session, run.run_id, by=BY, reason=run.reason)
    except (LookupError, NotAllowed):
        return False  # another process moved or resumed the run
    log.info("moved to the trash by retention: %s", run.reason, extra={"run": run.run_id})
    return True


def plan(session: Session, settings: Settings) -> Iterator[Leaving]:
    """The runs to move to the trash now, in the order in which they ended."""
    if not (settings.retention_days or settings.retention_runs or settings.retention_bytes):
        return
    runs_over, bytes_over = _excess(session, settings)
    before = time.time() - settings.retention_days * DAY if settings.retention_days else 0.0
    # an imported run may have ended long before it came here
    before_it_came = (Run.kind == REPORTED) & (Run.finished_at < Run.created_at)
    ended_at = case((before_it_came, Run.created_at), else_=func.coalesce(Run.finished_at, Run.created_at))
    going_on = select(Run.sweep_id).where(Run.status.in_(OPEN), Run.sweep_id.is_not(None))
    left_alone = Run.sweep_id.is_not(None) & Run.sweep_id.in_(going_on)
    chosen = select(Run.id, Run.name, ended_at.label("ended_at"), Run.bytes_stored, cast(Run.tags, Text).label("tags"))
    chosen = chosen.where(Run.status.in_(AT_REST), NOT_IN_TRASH, ~left_alone).order_by(ended_at, Run.id)
    for run in session.execute(chosen.execution_options(yield_per=500)):
        if run.ended_at >= before and runs_over <= 0 and bytes_over <= 0:
            return  # all further runs ended later
        if _is_protected(run.id, run.tags, settings):
            continue
        if run.ended_at < before:
            reason = f"it ended more than {settings.retention_days:g} days ago (STABLESSM_RETENTION_DAYS)"
        elif runs_over > 0:
            reason = f"more than {settings.retention_runs:,} ended runs are kept (STABLESSM_RETENTION_RUNS)"
        else:
            reason = f"the runs occupy more than {settings.retention_bytes:,} bytes (STABLESSM_RETENTION_BYTES)"
        runs_over, bytes_over = runs_over - 1, bytes_over - run.bytes_stored
        yield Leaving(run.id, run.name, run.ended_at, run.bytes_stored, reason)


def _is_protected(run_id: int, tags: str, settings: Settings) -> bool:
    """True if one of the run's tags protects the run, or if its tags cannot be read. tags: JSON text."""
    try:
        return bool({tag.lower() for tag in json.loads(tags)} & set(settings.retention_keep_tags))
    except (ValueError, TypeError, AttributeError):
        log.warning("retention keeps this run, because its tags cannot be read", extra={"run": run_id})
        return True


def _excess(session: Session, settings: Settings) -> tuple[int, int]:
    """The numbers of ended runs and of bytes above the limits; 0 or less if a limit is not exceeded."""
    runs = bytes_stored = 0
    if settings.retention_runs:
        ended = select(func.count()).select_from(Run).where(Run.status.in_(AT_REST), NOT_IN_TRASH)
        runs = (session.scalar(ended) or 0) - settings.retention_runs
    if settings.retention_bytes:
        bytes_stored = occupied(session)[0].bytes_stored - settings.retention_bytes
    return runs, bytes_stored
