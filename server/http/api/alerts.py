"""The alerts of one run or of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, AlertRow, Run
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.api.runs import filter_refusal, run_not_found
from server.http.schemas.runs import MAX_ID, AlertList, RunId
from server.lifecycle.answers import ALERT_FIELDS, ALERTS
from server.lifecycle.submitters import owned_by
from server.search.filter_syntax import MAX_LENGTH, FilterError
from server.search.filters import parse_filter
from server.series.alerts import OF_KEPT_RUNS
from server.series.encoding import json_response

router = APIRouter(prefix="/api", tags=["alerts"])

Limit = Annotated[int, Query(ge=1, le=1000)]
Severity = Annotated[Literal["warning", "critical"] | None, Query(description="Only alerts of this severity.")]


def run_alerts_json(session: Session, run_id: int, *, since: int = 0, limit: int = 1000) -> dict[str, Any]:
    """The run's alerts, oldest first. Raises NotFound."""
    found = _alerts_json(session, ALERTS.where(AlertRow.run_id == run_id, AlertRow.id > since).order_by(AlertRow.id).limit(limit))
    if session.scalar(select(Run.id).where(Run.id == run_id, NOT_IN_TRASH)) is None:
        raise run_not_found(session, run_id)
    return {"alerts": found, "next_cursor": None}


def all_alerts_json(
    session: Session, *, since: int = 0, limit: int = 200, severity: str | None = None, cursor: int | None = None,
    of_runs: Sequence[ColumnElement[bool]] = (),
) -> dict[str, Any]:  # fmt: skip
    """The alerts of all runs, or of the runs that match `of_runs`, with ids above `since` and below `cursor`, newest first."""
    chosen = ALERTS.where(AlertRow.id > since, OF_KEPT_RUNS)
    if of_runs:
        chosen = chosen.where(AlertRow.run_id.in_(select(Run.id).where(*of_runs)))
    if cursor is not None:
        chosen = chosen.where(AlertRow.id < cursor)
    if severity is not None:
        chosen = chosen.where(AlertRow.severity == severity)
    found = _alerts_json(session, chosen.order_by(AlertRow.id.desc()).limit(limit + 1))
    return {"alerts": found[:limit], "next_cursor": found[limit - 1]["id"] if len(found) > limit else None}


def _alerts_json(session: Session, chosen: Select[Any]) -> list[dict[str, Any]]:
    return [dict(zip(ALERT_FIELDS, row, strict=True)) for row in session.execute(chosen)]


@router.get("/runs/{run_id}/alerts", response_model=AlertList)
def of_run(
    run_id: RunId,
    database: DatabaseDep,
    since: Annotated[int, Query(ge=0, le=MAX_ID, description="Only alerts with a greater id.")] = 0,
    limit: Limit = 1000,
) -> Response:
    """The alerts of one run, oldest first."""
    with database.read_autocommit() as session:
        return json_response(to_json(run_alerts_json(session, run_id, since=since, limit=limit)))


@router.get("/alerts", response_model=AlertList)
def of_all(
    database: DatabaseDep,
    principal: PrincipalDep,
    since: Annotated[int, Query(ge=0, le=MAX_ID, description="Only alerts with a greater id.")] = 0,
    limit: Limit = 200,
    severity: Severity = None,
    q: Annotated[
        str, Query(max_length=MAX_LENGTH, description="Only alerts of runs that match this filter, as in the list of runs.")
    ] = "",
    cursor: Annotated[int | None, Query(ge=1, le=MAX_ID, description="`next_cursor` of the previous page.")] = None,
) -> Response:
    """The alerts of all runs, newest first."""
    try:
        of_runs = parse_filter(q, database.dialect, owned_by(principal))
    except FilterError as error:
        raise filter_refusal(error) from None
    with database.read_autocommit() as session:
        found = all_alerts_json(session, since=since, limit=limit, severity=severity, cursor=cursor, of_runs=of_runs)
        return json_response(to_json(found))
