"""The live stream of one run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated

from fastapi import APIRouter, Header, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from server.errors import Invalid, NotFound, Unavailable
from server.http.api.deps import BroadcasterDep
from server.http.schemas.runs import RunId
from server.live.broadcaster import MAX_VIEWERS, Viewer
from server.live.frames import parse_position

router = APIRouter(prefix="/api/runs", tags=["series"])

EXAMPLE = """retry: 1000

event: points
id: 18
data: {"seq":18,"attempt":1,"step":424,"steps_per_second":95.1,"eta_seconds":6.0,"series":[{"name":"train/loss","width":1,
data: "step":{"dtype":"f8","bdata":"..."},"value":{"dtype":"f4","bdata":"...","shape":"12, 1"}}]}
"""
Position = Annotated[str | None, Query(max_length=40, description="Continue after this event id. The header takes precedence.")]


class EventStream(StreamingResponse):
    """Server-Sent Events from a generator, which is closed when the viewer disconnects."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncGenerator[bytes, None]) -> None:
        super().__init__(events, headers={"X-Accel-Buffering": "no"})
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._events):
            await super().__call__(scope, receive, send)


@router.get(
    "/{run_id}/stream",
    response_class=EventStream,
    status_code=200,
    responses={200: {"content": {"text/event-stream": {"example": EXAMPLE}}, "description": "Server-Sent Events."}},
)
async def stream(
    run_id: RunId,
    broadcaster: BroadcasterDep,
    request: Request,
    series: Annotated[str | None, Query(max_length=10_000, description="Only these series, separated by commas.")] = None,
    after: Position = None,
    last_event_id: Position = None,
    last_event_id_header: Annotated[str | None, Header(alias="Last-Event-ID", max_length=40)] = None,
) -> EventStream:
    """Server-Sent Events: `points` (new steps as typed arrays), `alert`, `status`, `reset` if the page must fetch
    everything again, and `live` when the stream changes between pushed and polled events.

    Without a position, the stream starts with the current status. With `Last-Event-ID` it continues without gaps or repeats.
    """
    given = last_event_id_header or last_event_id or after
    try:
        position = parse_position(given) if given else None
    except ValueError as error:
        raise Invalid(str(error), field="Last-Event-ID", allowed="the id of an event") from None
    if broadcaster.viewers >= MAX_VIEWERS:
        raise Unavailable(
            f"{broadcaster.viewers} live streams are open", allowed=f"at most {MAX_VIEWERS}", headers={"Retry-After": "5"}
        )
    present = await broadcaster.present(run_id)
    if present is not None and position is not None and position[0] > present[0]:
        present = await broadcaster.present(run_id)  # the shared first result was older than the viewer's position
    if present is None:
        raise NotFound(f"there is no run {run_id}", field="run_id")
    wanted = frozenset(series.split(",")) if series is not None else None
    return EventStream(broadcaster.stream(Viewer(request.state.connection), run_id, present, position, wanted))
