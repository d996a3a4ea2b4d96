"""Numbers that a program may report, compared with those that are stored (docs/protocol.md)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import select
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool

from server.access.tokens import Principal
from server.database.connection import Database
from server.database.models import Run, SeriesRow
from server.errors import Conflict, Invalid
from server.http.api.deps import DatabaseDep, PrincipalDep
from server.http.schemas.ingest import CompareAnswer
from server.ingest.records import read_records
from server.ingest.reports import check_reporter
from server.ingest.schemas import Id
from server.series.differences import Comparison, compare_metrics
from server.series.encoding import dumps, json_response
from stablessm_core.report.frames import CONTENT_TYPE, BadFrame
from stablessm_core.report.messages import MetricsMessage
from stablessm_core.telemetry.nonfinite import json_safe

router = APIRouter(prefix="/api/ingest/runs", tags=["ingest"])


@router.post(
    "/{id}/compare",
    response_model=CompareAnswer,
    openapi_extra={"requestBody": {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def compare_records(id: Id, request: Request, database: DatabaseDep, principal: PrincipalDep) -> Any:
    """Compare the free metrics in these records with those of the run, and store nothing. `id` is the UUID that the program
    chose. Without records, the answer lists the run's series."""
    body = await request.body()
    return json_response(dumps(json_safe(await run_in_threadpool(_compare, database, principal, id, body))))


def _compare(database: Database, principal: Principal, external_id: str, body: bytes) -> dict[str, Any]:
    try:
        messages = [message for message in read_records(body) if isinstance(message, MetricsMessage)]
    except BadFrame as bad:
        raise Invalid(str(bad)[:2000], field=f"frames.{bad.index}", allowed=bad.allowed[:1000]) from None
    with database.read() as session:
        run = session.scalars(select(Run).where(Run.external_id == external_id)).one_or_none()
        if run is None:
            return _answer(None, [], Comparison())
        check_reporter(principal, run)
        if run.deleted_at is not None:
            raise Conflict(f"run {run.id} is in the trash", field="id", allowed=f"POST /api/runs/{run.id}/restore restores it")
        return _answer(run.id, [] if messages else _names(session, run.id), compare_metrics(session, run.id, messages))


def _names(session: Session, run_id: int) -> list[str]:
    return list(session.scalars(select(SeriesRow.name).where(SeriesRow.run_id == run_id).order_by(SeriesRow.name)))


def _answer(run_id: int | None, names: list[str], found: Comparison) -> dict[str, Any]:
    return {
        "run_id": run_id, "url": None if run_id is None else f"/runs/{run_id}", "names": names, "differing": found.differing,
        "first": [vars(one) for one in found.first], "unknown": found.unknown, "last_step": found.last_step,
    }  # fmt: skip
