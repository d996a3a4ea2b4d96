"""The alerts of one run or of all runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic import BaseModel, BeforeValidator, Field
from pydantic_core import to_json
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from server.access.tokens import Principal
from server.database.models import NOT_IN_TRASH, AlertRow, Run
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.api.runs import filter_refusal, run_not_found
from server.http.schemas.runs import MAX_ID, AlertList, RunId
from server.lifecycle.answers import ALERT_FIELDS, ALERTS
from server.lifecycle.submitters import owned_by
from server.search.alert_filters import AlertFilter, alert_conditions
from server.search.filter_syntax import MAX_LENGTH, FilterError
from server.series.encoding import json_response

router = APIRouter(prefix="/api", tags=["alerts"])

Limit = Annotated[int, Query(ge=1, le=1000)]
# a form sends its empty fields as empty values
NONE_IF_EMPTY = BeforeValidator(lambda given: None if given == "" else given)
Severity = Annotated[Literal["warning", "critical"] | None, NONE_IF_EMPTY]
Number = Annotated[Annotated[int, Field(ge=1, le=MAX_ID)] | None, NONE_IF_EMPTY]


class AlertQuery(BaseModel):
    """The filter and the page of a list of alerts. An empty value sets no condition."""

    since: int = Field(0, ge=0, le=MAX_ID, description="Only alerts with a greater id.")
    limit: int = Field(200, ge=1, le=1000)
    severity: Severity = Field(None, description="Only alerts of this severity.")
    kind: str = Field("", max_length=40, description="Only alerts of this kind, such as `nonfinite_loss`.")
    run: Number = Field(None, description="Only alerts of this run.")
    after: str = Field("", max_length=40, description="Only alerts raised since then: an age such as `7d`, a day, a moment.")
    before: str = Field("", max_length=40, description="Only alerts raised before: an age such as `1h30m`, a day, a moment.")
    q: str = Field("", max_length=MAX_LENGTH, description="Only alerts of runs that match this filter, as in the list of runs.")
    cursor: Number = Field(None, description="`next_cursor` of the previous page.")


def run_alerts_json(session: Session, run_id: int, *, since: int = 0, limit: int = 1000) -> dict[str, Any]:
    """The run's alerts, oldest first. Raises NotFound."""
    found = alerts_json(session, ALERTS.where(AlertRow.run_id == run_id, AlertRow.id > since).order_by(AlertRow.id).limit(limit))
    if session.scalar(select(Run.id).where(Run.id == run_id, NOT_IN_TRASH)) is None:
        raise run_not_found(session, run_id)
    return {"alerts": found, "next_cursor": None}


def all_alerts_json(session: Session, query: AlertQuery, conditions: Sequence[ColumnElement[bool]]) -> dict[str, Any]:
    """The alerts that meet the conditions, with ids above `since` and below `cursor`, newest first."""
    chosen = ALERTS.where(AlertRow.id > query.since, *conditions)
    if query.cursor is not None:
        chosen = chosen.where(AlertRow.id < query.cursor)
    found = alerts_json(session, chosen.order_by(AlertRow.id.desc()).limit(query.limit + 1))
    more = len(found) > query.limit
    return {"alerts": found[: query.limit], "next_cursor": found[query.limit - 1]["id"] if more else None}


def conditions_of(query: AlertQuery, dialect: str, principal: Principal) -> list[ColumnElement[bool]]:
    """The SQL conditions of the query's filter. Raises Invalid."""
    wanted = AlertFilter(query.severity, query.kind, query.run, query.after, query.before, query.q)
    try:
        return alert_conditions(wanted, dialect, owned_by(principal))
    except FilterError as error:
        raise filter_refusal(error) from None


def alerts_json(session: Session, chosen: Select[Any]) -> list[dict[str, Any]]:
    """The AlertAnswer of each chosen row of ALERTS."""
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
def of_all(database: DatabaseDep, principal: PrincipalDep, query: Annotated[AlertQuery, Query()]) -> Response:
    """The alerts of all runs, newest first."""
    conditions = conditions_of(query, database.dialect, principal)
    with database.read_autocommit() as session:
        return json_response(to_json(all_alerts_json(session, query, conditions)))
