"""HTTP on one connection: uvicorn's own, with a deadline for the header that a silent or dripping client cannot outwait."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEADER_SECONDS = 15.0
HEADER_BYTES = 65_536  # of a request line with all its headers; `series` and `q` may be long
TIMEOUT = b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Protocol(H11Protocol):
    """Closes a connection whose next request header is not complete HEADER_SECONDS after it opened or its first byte came."""

    _deadline: asyncio.TimerHandle | None = None

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.app_state = {**self.app_state, "connection": self}  # a live stream whose viewer takes nothing closes it

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._deadline = self.loop.call_later(HEADER_SECONDS, self._too_slow)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()  # the beginning of the next request may be here already

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def _watch(self) -> None:
        if self.conn.their_state is not h11.IDLE:
            self._disarm()  # a whole header; its body has a deadline of its own
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
