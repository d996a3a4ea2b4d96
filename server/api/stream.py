"""The live stream of one run."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Query
from fastapi.responses import StreamingResponse
from starlette.concurrency import run_in_threadpool

from server.api.deps import DatabaseDep, HubDep
from server.api.runs import find_run
from server.db import Database
from server.errors import Invalid, Unavailable
from server.events import parse_position
from server.live import MAX_VIEWERS
from server.schemas import RunId

router = APIRouter(prefix="/api/runs", tags=["series"])

EXAMPLE = """retry: 1000

event: points
id: 18
data: {"seq":18,"attempt":1,"step":424,"steps_per_second":95.1,"eta_seconds":6.0,"series":[{"name":"train/loss","width":1,
data: "step":{"dtype":"f8","bdata":"..."},"value":{"dtype":"f4","bdata":"...","shape":"12, 1"}}]}
"""
Position = Annotated[str | None, Query(max_length=40, description="Continue after this event id; the header wins.")]


@router.get(
    "/{run_id}/stream",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"example": EXAMPLE}}, "description": "Server-Sent Events."}},
)
async def stream(
    run_id: RunId,
    database: DatabaseDep,
    hub: HubDep,
    series: Annotated[str | None, Query(max_length=10_000, description="Only these series, separated by commas.")] = None,
    after: Position = None,
    last_event_id: Position = None,
    last_event_id_header: Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)] = None,
) -> StreamingResponse:
    """Server-Sent Events: `points` (new steps only, typed arrays), `alert`, `status`, and `reset` when the page must refetch.

    Without a position the stream begins with the present status. `Last-Event-ID` continues without gap or repeat.
    """
    given = last_event_id_header or last_event_id or after
    try:
        position = parse_position(given) if given else None
    except ValueError as error:
        raise Invalid(str(error), field="Last-Event-ID", allowed="the id of an event") from None
    if hub.viewers >= MAX_VIEWERS:
        raise Unavailable(f"{hub.viewers} live streams are open", allowed=f"at most {MAX_VIEWERS}", headers={"Retry-After": "5"})
    seq = await run_in_threadpool(_seq, database, run_id)
    wanted = frozenset(series.split(",")) if series is not None else None
    return StreamingResponse(
        hub.stream(run_id, seq, position, wanted), media_type="text/event-stream", headers={"X-Accel-Buffering": "no"}
    )


def _seq(database: Database, run_id: int) -> int:
    with database.read() as session:
        return find_run(session, run_id).seq
