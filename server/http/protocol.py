"""The HTTP protocol of a connection. It adds limits to uvicorn's protocol: on the time and the size of a request header, and on
the number of waiting requests. So silent, slow and hostile clients hold no connection for long and occupy little memory.

Live streams also use this protocol to check whether a viewer still reads, and to close the connection if the viewer does not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

from starlette.types import Message
from uvicorn.protocols.http.httptools_impl import HEADER_VALUE_RE, STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

HEADER_SECONDS = 15.0
HEADER_BYTES = 65_536  # maximum size of a request line and its headers, in bytes; `series` and `q` may be long
FRAMING = 8  # bytes of chunk sizes and trailers that are allowed per byte of a chunked body
MAX_PIPELINED = 64  # requests that wait for the response to an earlier request on the same connection
TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
DISCARD = struct.pack("ii", 1, 0)  # SO_LINGER: on close, the kernel discards unsent bytes


class Refused(Exception):
    """Raised while a request is parsed. uvicorn then responds with status 400."""


class OldCycle(RequestResponseCycle):
    """A request of HTTP/1.0, to which uvicorn would send chunks. HTTP/1.0 has no chunks: the end of the connection is the end of
    a response of unknown length."""

    _unframed = False

    async def send(self, message: Message) -> None:  # type: ignore[override]
        if not self.response_started:
            self._unframed = not any(name.lower() == b"content-length" for name, _ in message.get("headers", ()))
        if not self._unframed:
            await super().send(message)  # type: ignore[arg-type]
            return
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self.response_started = True
            headers = [*self.default_headers, *message.get("headers", ())]
            if any(HEADER_VALUE_RE.search(value) for _, value in headers):  # a line end would begin another header
                raise RuntimeError("invalid HTTP header value")
            lines = [name + b": " + value + b"\r\n" for name, value in headers]
            self.transport.write(b"".join([STATUS_LINE[message["status"]], *lines, b"connection: close\r\n\r\n"]))
            return
        if self.scope["method"] != "HEAD":
            self.transport.write(message.get("body", b""))
        if not message.get("more_body", False):
            self.response_complete = True
            self.message_event.set()
            self.transport.close()
            self.on_response()


class Protocol(HttpToolsProtocol):
    """Closes a connection if a request header is still incomplete HEADER_SECONDS after its first byte. For the first request,
    this time starts when the connection opens. A body has its own deadline (server.http.bodies)."""

    _deadline: asyncio.TimerHandle | None = None
    _in_header = False  # True from the first byte of a request to the end of its header
    _body = 0  # bytes of the body of the request that is being received
    _other = 0  # bytes of its header, chunk sizes and trailers, without those that came together with the request before it

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.app_state = {**self.app_state, "connection": self}

    @property
    def blocked(self) -> bool:
        """True if the send buffer is so full that the application must wait."""
        return self.flow.write_paused

    @property
    def waiting(self) -> int:
        """Number of bytes in the send buffer."""
        return self.transport.get_write_buffer_size()

    def abort(self) -> None:
        """Close the connection now and discard the send buffer."""
        if not self.transport.is_closing():
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, DISCARD)
            self.transport.abort()

    # ---- what asyncio and uvicorn call ----

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()

    def data_received(self, data: bytes) -> None:
        self._other += len(data)
        super().data_received(data)
        if self._other > HEADER_BYTES + FRAMING * self._body and not self.transport.is_closing():
            self.send_400_response("Invalid HTTP request received.")
        if self._responding:
            self._disarm()
        else:
            self._arm()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_header and not self._responding:  # the next request has begun already
            self._arm()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    # ---- what the parser calls ----

    def on_message_begin(self) -> None:
        self._in_header = True
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_header:  # otherwise it is a trailer, which nobody reads
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        line = len(self.parser.get_method()) + len(self.url) + len("  HTTP/1.1\r\n")
        if line + sum(len(name) + len(value) + len(": \r\n") for name, value in self.headers) + len("\r\n") > HEADER_BYTES:
            raise Refused("the header is too long")
        if len(self.pipeline) >= MAX_PIPELINED:
            raise Refused("too many requests at once")
        self._in_header = False
        super().on_headers_complete()
        if self.cycle.scope["http_version"] == "1.0":
            self.cycle.__class__ = OldCycle  # before its task runs

    def on_body(self, body: bytes) -> None:
        self._other -= len(body)
        self._body += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._other = self._body = 0
        super().on_message_complete()

    # ---- the deadline ----

    @property
    def _responding(self) -> bool:
        """True from the end of a request's header to the end of its response."""
        return self.cycle is not None and not self.cycle.response_complete

    def _arm(self) -> None:
        if self._deadline is None:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if not self._responding and not self.transport.is_closing():
            if self._in_header:
                self.transport.write(TIMEOUT)
            self.transport.close()
