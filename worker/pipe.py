"""The pipe between a worker and its training process: a socket pair with one JSON object per line; nothing is pickled."""

from __future__ import annotations

import json
import select
import socket
import threading
from typing import Any

Message = dict[str, Any]


class Pipe:
    """One end of the pipe."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._socket.setblocking(True)
        self._buffer = b""
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message. Raises OSError if the other end is closed."""
        with self._sending:  # a lock, because several threads of a training process send messages
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self, timeout: float | None = None) -> Message | None:
        """The next message, or None after `timeout` seconds without a message. Raises EOFError if the other process has
        ended."""
        while b"\n" not in self._buffer:
            if not select.select([self._socket], [], [], timeout)[0]:
                return None
            try:
                data = self._socket.recv(1 << 16)
            except ConnectionResetError:
                data = b""
            if not data:
                raise EOFError("the other process is gone")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        message: Message = json.loads(line)
        return message

    def close(self) -> None:
        self._socket.close()
