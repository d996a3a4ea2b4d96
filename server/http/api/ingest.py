"""Runs that other programs train: open a run, and post its records (docs/protocol.md)."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from server.errors import Invalid
from server.http.api.deps import DatabaseDep, PrincipalDep, SettingsDep
from server.http.schemas.ingest import OpenAnswer, RecordsAnswer
from server.http.schemas.runs import RunId
from server.ingest.opening import open_run
from server.ingest.records import read_records
from server.ingest.reports import Reports
from server.ingest.schemas import OpenRequest
from server.series.encoding import dumps, json_response
from stablessm_core.report.frames import CONTENT_TYPE, LIMITS, BadFrame

router = APIRouter(prefix="/api/ingest/runs", tags=["ingest"])


@router.post("", status_code=201, response_model=OpenAnswer, responses={200: {"model": OpenAnswer}})
def open_reported(
    wanted: OpenRequest, database: DatabaseDep, settings: SettingsDep, principal: PrincipalDep,
    request: Request, response: Response,
) -> Any:  # fmt: skip
    """Open a run that another program trains and reports. The status is 201 for a new run, and 200 for a run that continues."""
    now = time.time()
    with database.write() as session:
        run, new = open_run(session, wanted, principal)
    request.app.state.reports.announce(run.id)
    response.status_code = 201 if new else 200
    response.headers["Location"] = f"/api/runs/{run.id}"
    request.state.attempt = run.attempt  # the log line of this request contains the attempt
    return {
        "run_id": run.id,
        "attempt": run.attempt,
        "url": f"/runs/{run.id}",
        "next_step": run.step + 1,
        "lease_seconds": settings.reported_lease_seconds,
        "limits": vars(LIMITS),
        "server_time": now,
        "clock_offset_seconds": None if wanted.client_time is None else wanted.client_time - now,
    }


@router.post(
    "/{run_id}/records",
    response_model=RecordsAnswer,
    openapi_extra={"requestBody": {"content": {CONTENT_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
)
async def post_records(
    run_id: RunId,
    request: Request,
    principal: PrincipalDep,
    x_attempt: Annotated[int, Header(ge=1, le=2**31 - 1, description="The attempt in the answer to opening the run.")],
) -> Any:
    """Store the records of a run, all or none of them. An empty body is a heartbeat. A repeated post changes nothing."""
    reports: Reports = request.app.state.reports
    reports.check_room()  # before the body is read
    body = await request.body()
    with reports.room(len(body)):
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(reports.threads, _store, reports, run_id, x_attempt, principal, body)


def _store(reports: Reports, run_id: int, attempt: int, principal: Any, body: bytes) -> Response:
    try:
        stored = reports.store(run_id, attempt, principal, read_records(body))
    except BadFrame as bad:
        field = f"frames.{bad.index}" + (f".{bad.field}" if bad.field else "")
        raise Invalid(str(bad)[:2000], field=field[:200], allowed=bad.allowed[:1000]) from None
    answer = {"seq": stored.seq, "stored_through": stored.stored_through, "stop_requested": stored.stop_requested}
    return json_response(dumps(answer))
