"""Silences: conditions on a run, a project or a kind of event. Until a silence ends, no message that matches it is sent."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from sqlalchemy import delete, select
from sqlalchemy.orm import Session

from server.database.models import Run, SilenceRow
from server.webhooks.messages import moment

MAX_SILENCES = 1000
KEPT_SECONDS = 86_400.0  # how long an ended silence stays in the database


def current_silences(session: Session, now: float) -> Sequence[SilenceRow]:
    """The silences that have not ended, those that end first before the others."""
    return session.scalars(select(SilenceRow).where(SilenceRow.until > now).order_by(SilenceRow.until, SilenceRow.id)).all()


def silence_of(silences: Sequence[SilenceRow], run_id: int, project: str, kind: str) -> SilenceRow | None:
    """The silence that keeps back an event the longest; None if none matches."""
    found = [
        one for one in silences if one.run_id in (None, run_id) and one.project in (None, project) and one.kind in (None, kind)
    ]
    return max(found, key=lambda one: one.until, default=None)


def words_of(silence: SilenceRow) -> str:
    """Why a message was not sent."""
    return f"silenced until {moment(silence.until)}{f' by {silence.created_by}' if silence.created_by else ''}"[:300]


def add_silence(
    session: Session, *, run_id: int | None, project: str | None, kind: str | None, until: float, created_by: str
) -> SilenceRow:
    """A new silence. Silences that ended a day ago are deleted."""
    now = time.time()
    session.execute(delete(SilenceRow).where(SilenceRow.until < now - KEPT_SECONDS))
    silence = SilenceRow(run_id=run_id, project=project, kind=kind, until=until, created_at=now, created_by=created_by)
    session.add(silence)
    session.flush()
    return silence


def silences_json(session: Session) -> dict[str, Any]:
    """The SilenceList: the silences that have not ended."""
    return {"silences": [silence_json(one) for one in current_silences(session, time.time())]}


def run_silences_json(session: Session, run: Run) -> list[dict[str, Any]]:
    """The SilenceAnswer of each silence that matches the run, or some kinds of its events."""
    current = current_silences(session, time.time())
    return [silence_json(one) for one in current if one.run_id in (None, run.id) and one.project in (None, run.project)]


def silence_json(silence: SilenceRow) -> dict[str, Any]:
    return {name: getattr(silence, name) for name in ("id", "run_id", "project", "kind", "until", "created_at", "created_by")}
