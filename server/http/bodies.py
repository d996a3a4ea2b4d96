"""Limits on the body of a request: its size, its type, and how long it may take to arrive."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from server.http.refusals import MAX_BODY_BYTES, render_error

BODY_SECONDS = 15.0


def body_refusal(request: Request) -> Response | None:
    """The refusal of a body whose headers say that it is too large or of a wrong type; None if there is nothing to refuse."""
    length, chunked = request.headers.get("content-length", "0"), "transfer-encoding" in request.headers
    if not length.isascii() or not length.isdigit():
        return render_error(request, 400, "Content-Length is not a number", field="Content-Length")
    if len(length) > 12 or int(length) > MAX_BODY_BYTES:
        return render_error(
            request, 413, "the request body is too large", field="body", allowed=f"at most {MAX_BODY_BYTES:,} bytes"
        )
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (int(length) or chunked) and request.url.path.startswith("/api") and kind != "application/json":
        given = f"the body is {kind[:100] or 'of no stated type'}"
        return render_error(request, 415, given, field="Content-Type", allowed="application/json")
    return None


def bounded(scope: Scope, receive: Receive) -> Receive:
    """`receive` that refuses a body which is too long or not complete in time; waiting for a disconnect is not bounded."""
    size, complete, deadline = 0, False, time.monotonic() + BODY_SECONDS
    headers = Headers(scope=scope)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers

    async def receive_bounded() -> Message:
        nonlocal size, complete
        if complete or not has_body:
            return await receive()
        try:
            message = await asyncio.wait_for(receive(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            raise HTTPException(408, f"the request body did not arrive within {BODY_SECONDS:g} s") from None
        size += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if size > MAX_BODY_BYTES:
            raise HTTPException(413)
        return message

    return receive_bounded
