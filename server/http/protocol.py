"""The HTTP protocol of a connection. It adds a deadline for request headers to uvicorn's protocol, so that the connections of
silent and slow clients are closed.

Live streams also use this protocol to check whether a viewer still reads, and to close the connection if the viewer does not.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 15.0
HEADER_BYTES = 65_536  # maximum size of a request line and its headers, in bytes; `series` and `q` may be long
TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
DISCARD = struct.pack("ii", 1, 0)  # SO_LINGER: on close, the kernel discards unsent bytes


class Connection(h11.Connection):
    """Refuses a header that is longer than HEADER_BYTES. h11 itself only checks incomplete headers."""

    def next_event(self) -> Any:
        """The next event. Raises RemoteProtocolError if the header is too long."""
        if self.their_state is not h11.IDLE:
            return super().next_event()
        before = len(self.trailing_data[0])
        event = super().next_event()
        if isinstance(event, h11.Request) and before - len(self.trailing_data[0]) > HEADER_BYTES:
            raise h11.RemoteProtocolError("the header is too long", error_status_hint=431)
        return event


class Protocol(H11Protocol):
    """Closes a connection if a request header is still incomplete HEADER_SECONDS after its first byte. For the first request,
    this time starts when the connection opens."""

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.conn = Connection(h11.SERVER, HEADER_BYTES)
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()  # the start of the next request may have arrived already

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._disarm()  # the header is complete; the body has its own deadline
        elif self._deadline is None and self.conn.trailing_data[0]:
            self._deadline = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _too_slow(self) -> None:
        self._deadline = None
        if self.conn.their_state is h11.IDLE and not self.transport.is_closing():
            if self.conn.trailing_data[0]:
                self.transport.write(TIMEOUT)
            self.transport.close()
