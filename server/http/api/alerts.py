"""Alerts: of one run, and of all."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Response
from pydantic_core import to_json
from sqlalchemy import Select, select
from sqlalchemy.orm import Session

from server.database.models import AlertRow, Run
from server.http.api.deps import DatabaseDep
from server.http.api.runs import absent
from server.http.schemas.runs import MAX_ID, AlertList, RunId
from server.runs.answers import ALERT_FIELDS, ALERTS
from server.series.encoding import json_response

router = APIRouter(prefix="/api", tags=["alerts"])

Limit = Annotated[int, Query(ge=1, le=1000)]
Severity = Annotated[Literal["warning", "critical"] | None, Query(description="Only these.")]


def run_alerts(session: Session, run_id: int, *, since: int = 0, limit: int = 1000) -> dict[str, Any]:
    """The run's alerts, oldest first. Raises NotFound."""
    found = _answers(session, ALERTS.where(AlertRow.run_id == run_id, AlertRow.id > since).order_by(AlertRow.id).limit(limit))
    if not found and session.scalar(select(Run.id).where(Run.id == run_id)) is None:
        raise absent(run_id)
    return {"alerts": found}


def all_alerts(session: Session, *, since: int = 0, limit: int = 200, severity: str | None = None) -> dict[str, Any]:
    """Alerts of all runs after number `since`, newest first."""
    chosen = ALERTS.where(AlertRow.id > since)
    if severity is not None:
        chosen = chosen.where(AlertRow.severity == severity)
    return {"alerts": _answers(session, chosen.order_by(AlertRow.id.desc()).limit(limit))}


def _answers(session: Session, chosen: Select[Any]) -> list[dict[str, Any]]:
    return [dict(zip(ALERT_FIELDS, row, strict=True)) for row in session.execute(chosen)]


@router.get("/runs/{run_id}/alerts", response_model=AlertList)
def of_run(
    run_id: RunId,
    database: DatabaseDep,
    since: Annotated[int, Query(ge=0, le=MAX_ID, description="Only alerts with a greater id.")] = 0,
    limit: Limit = 1000,
) -> Response:
    """Alerts of one run, oldest first."""
    with database.glance() as session:
        return json_response(to_json(run_alerts(session, run_id, since=since, limit=limit)))


@router.get("/alerts", response_model=AlertList)
def of_all(
    database: DatabaseDep,
    since: Annotated[int, Query(ge=0, le=MAX_ID, description="Only alerts with a greater id.")] = 0,
    limit: Limit = 200,
    severity: Severity = None,
) -> Response:
    """Alerts of all runs, newest first."""
    with database.glance() as session:
        return json_response(to_json(all_alerts(session, since=since, limit=limit, severity=severity)))
