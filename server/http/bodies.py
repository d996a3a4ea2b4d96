"""Limits on the body of a request: its size, its type, and the time it may take to arrive."""

from __future__ import annotations

import asyncio
import time

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Message, Receive, Scope

from server.http.refusals import RECORDS, most_bytes, render_error
from stablessm_core.report import frames

BODY_SECONDS = 15.0
ARCHIVES, ARCHIVE_TYPE = "/api/imports", "application/x-tar"  # the only path that accepts large bodies
MAX_ARCHIVE_BYTES = 8 << 30
ARCHIVE_SECONDS = 3600.0


def body_refusal(request: Request) -> Response | None:
    """The error response for a body that is too large or has the wrong type, according to its headers; None if the body is
    acceptable."""
    length, chunked = request.headers.get("content-length", "0"), "transfer-encoding" in request.headers
    if not length.isascii() or not length.isdigit():
        return render_error(request, 400, "Content-Length is not a number", field="Content-Length")
    most, type_ = most_bytes(request.url.path), "application/json"
    if request.url.path == ARCHIVES:
        most, type_ = MAX_ARCHIVE_BYTES, ARCHIVE_TYPE
    elif RECORDS.fullmatch(request.url.path):
        type_ = frames.CONTENT_TYPE
    if len(length) > 12 or int(length) > most:
        return render_error(request, 413, "the request body is too large", field="body", allowed=f"at most {most:,} bytes")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if (int(length) or chunked) and request.url.path.startswith("/api") and kind != type_:
        given = f"the body is {kind[:100] or 'of no stated type'}"
        return render_error(request, 415, given, field="Content-Type", allowed=type_)
    return None


def limit_body(scope: Scope, receive: Receive) -> Receive:
    """A `receive` function that refuses a body that is too large or too slow. Waiting for a disconnect has no limit."""
    archive = scope["path"] == ARCHIVES
    most, seconds = (MAX_ARCHIVE_BYTES, ARCHIVE_SECONDS) if archive else (most_bytes(scope["path"]), BODY_SECONDS)
    size, complete, deadline = 0, False, time.monotonic() + seconds
    headers = Headers(scope=scope)
    has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers

    async def receive_bounded() -> Message:
        nonlocal size, complete
        if complete or not has_body:
            return await receive()
        try:
            async with asyncio.timeout(max(0.0, min(BODY_SECONDS, deadline - time.monotonic()))):  # for each piece
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the request body did not arrive within {seconds:g} s") from None
        size += len(message.get("body", b""))
        complete = not message.get("more_body", False)
        if size > most:
            raise HTTPException(413)
        return message

    return receive_bounded
