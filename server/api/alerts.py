"""Alerts: of one run, and of all."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from sqlalchemy import select
from sqlalchemy.orm import Session

from server.answers import alert_answer
from server.api.deps import DatabaseDep
from server.api.runs import find_run
from server.models import AlertRow
from server.schemas import MAX_ID, AlertList, RunId

router = APIRouter(prefix="/api", tags=["alerts"])

Limit = Annotated[int, Query(ge=1, le=1000)]
Severity = Annotated[Literal["warning", "critical"] | None, Query(description="Only these.")]


def run_alerts(session: Session, run_id: int, *, since: int = 0, limit: int = 1000) -> dict[str, Any]:
    """The run's alerts, oldest first."""
    find_run(session, run_id)
    chosen = select(AlertRow).where(AlertRow.run_id == run_id, AlertRow.id > since).order_by(AlertRow.id).limit(limit)
    return {"alerts": [alert_answer(alert) for alert in session.scalars(chosen)]}


def all_alerts(session: Session, *, since: int = 0, limit: int = 200, severity: str | None = None) -> dict[str, Any]:
    """Alerts of all runs after number `since`, newest first."""
    chosen = select(AlertRow).where(AlertRow.id > since)
    if severity is not None:
        chosen = chosen.where(AlertRow.severity == severity)
    return {"alerts": [alert_answer(alert) for alert in session.scalars(chosen.order_by(AlertRow.id.desc()).limit(limit))]}


@router.get("/runs/{run_id}/alerts", response_model=AlertList)
def of_run(
    run_id: RunId,
    database: DatabaseDep,
    since: Annotated[int, Query(ge=0, le=MAX_ID, description="Only alerts with a greater id.")] = 0,
    limit: Limit = 1000,
) -> Any:
    """Alerts of one run, oldest first."""
    with database.read() as session:
        return run_alerts(session, run_id, since=since, limit=limit)


@router.get("/alerts", response_model=AlertList)
def of_all(
    database: DatabaseDep,
    since: Annotated[int, Query(ge=0, le=MAX_ID, description="Only alerts with a greater id.")] = 0,
    limit: Limit = 200,
    severity: Severity = None,
) -> Any:
    """Alerts of all runs, newest first."""
    with database.read() as session:
        return all_alerts(session, since=since, limit=limit, severity=severity)
