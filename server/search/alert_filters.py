"""Which alerts a list shows: the conditions on an alert, and the alerts of each run as one group."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, AlertRow, Run
from server.search.filter_syntax import FilterError, Text
from server.search.filter_values import span_of
from server.search.filters import parse_filter
from server.series.alerts import OF_KEPT_RUNS
from stablessm_core.spec.suggestions import did_you_mean
from stablessm_core.telemetry.detectors import KINDS

MAX_GROUPS = 100
SHOWN_OF_GROUP = 5  # newest alerts of each run that the page shows


@dataclass(frozen=True)
class AlertFilter:
    """Conditions that must all hold. An empty text or None sets no condition.

    kind: a name in KINDS. after, before: a time of the filter language, such as "7d" or "2026-11-01". q: a filter of runs.
    """

    severity: str | None = None
    kind: str = ""
    run: int | None = None
    after: str = ""
    before: str = ""
    q: str = ""


def alert_conditions(wanted: AlertFilter, dialect: str, me: ColumnElement[bool] | None) -> list[ColumnElement[bool]]:
    """The SQL conditions of the filter. Raises FilterError, whose `parameter` names the condition."""
    conditions: list[ColumnElement[bool]] = [OF_KEPT_RUNS]
    if of_runs := parse_filter(wanted.q, dialect, me):
        conditions.append(AlertRow.run_id.in_(select(Run.id).where(*of_runs)))
    if wanted.severity:
        conditions.append(AlertRow.severity == wanted.severity)
    if wanted.kind:
        if wanted.kind not in KINDS:
            guess = did_you_mean(wanted.kind, KINDS)
            raise FilterError(f"{wanted.kind[:40]!r} is not a kind of alert{guess}", ", ".join(KINDS), parameter="kind")
        conditions.append(AlertRow.kind == wanted.kind)
    if wanted.run is not None:
        conditions.append(AlertRow.run_id == wanted.run)
    if wanted.after:
        conditions.append(AlertRow.created_at >= _moment(wanted.after, "after"))
    if wanted.before:
        conditions.append(AlertRow.created_at < _moment(wanted.before, "before"))
    return conditions


def alert_groups(session: Session, conditions: list[ColumnElement[bool]]) -> list[dict[str, Any]]:
    """The runs with matching alerts, the run with the newest alert first, at most MAX_GROUPS: how many alerts, how many of them
    critical, and the numbers of the newest alerts."""
    critical = func.count().filter(AlertRow.severity == "critical")
    counted = select(AlertRow.run_id, func.count(), critical).where(*conditions).group_by(AlertRow.run_id)
    found = session.execute(counted.order_by(func.max(AlertRow.id).desc()).limit(MAX_GROUPS)).all()
    place = func.row_number().over(partition_by=AlertRow.run_id, order_by=AlertRow.id.desc()).label("place")
    runs = [run for run, _, _ in found]
    ranked = select(AlertRow.id, AlertRow.run_id, place).where(*conditions, AlertRow.run_id.in_(runs)).subquery()
    newest: dict[int, list[int]] = {}
    for alert, run in session.execute(select(ranked.c.id, ranked.c.run_id).where(ranked.c.place <= SHOWN_OF_GROUP)):
        newest.setdefault(run, []).append(alert)
    return [{"run_id": run, "total": total, "critical": bad, "newest": newest[run]} for run, total, bad in found]


def run_names(session: Session, runs: set[int]) -> dict[int, str | None]:
    """The name of each of these runs."""
    rows = session.execute(select(Run.id, Run.name).where(NOT_IN_TRASH, Run.id.in_(runs)))
    return {row.id: row.name for row in rows}


def _moment(text: str, parameter: str) -> float:
    """The start of a day, a moment, or the moment that was this long ago, as epoch seconds. Raises FilterError."""
    try:
        span = span_of(Text(text, 0, len(text)))
    except FilterError as error:
        raise FilterError(error.message, error.allowed, parameter=parameter) from None
    return span.low if span.age is None else time.time() - span.age
