"""A TCP proxy that misbehaves on demand: it delays, drips and swallows data, and refuses and resets connections between a
service and its clients.

The mode `silent` imitates a half-open connection: bytes are accepted and acknowledged but never forwarded, as behind a hung
middlebox, so no TCP timeout ever fires. The swallowed bytes are lost, and a stream with a gap cannot be used any more.
Connections that lost bytes are therefore reset when the fault ends.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from typing import Literal

Mode = Literal["pass", "delay", "drip", "silent", "refuse"]
RESET = struct.pack("ii", 1, 0)  # value of SO_LINGER with which closing a socket sends RST
DRIP_BYTES = 200  # bytes per drip


class Proxy:
    """Listens on 127.0.0.1:`port` and forwards to `target`, in threads of this process."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.mode: Mode = "pass"
        self.seconds = 0.0  # delay of each chunk, or time between two drips
        self.holes = 0  # number of connections that lost bytes
        self._pairs: dict[int, tuple[socket.socket, socket.socket]] = {}
        self._holed: set[int] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    def become(self, mode: Mode, seconds: float = 0.0) -> None:
        """Change the behaviour of every present and future connection."""
        # Change the mode and take the connections to reset under one lock, so that nothing still follows the old mode.
        with self._lock:
            self.seconds, self.mode = seconds, mode
            pairs = self._taken(only_holed=mode == "pass") if mode in ("refuse", "pass") else []
        self._reset(pairs)

    def cut(self) -> int:
        """Reset all connections in both directions, mid-stream; returns their number."""
        with self._lock:
            pairs = self._taken()
        self._reset(pairs)
        return len(pairs)

    def _taken(self, *, only_holed: bool = False) -> list[tuple[socket.socket, socket.socket]]:
        keys = [key for key in self._pairs if not only_holed or key in self._holed]
        return [self._pairs.pop(key) for key in keys]

    def _reset(self, pairs: list[tuple[socket.socket, socket.socket]]) -> None:
        for pair in pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                    end.shutdown(socket.SHUT_RDWR)  # wakes `_pump`; closing the socket then sends the reset

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.mode == "refuse":
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                client.close()
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self.target, timeout=5)
        except OSError:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            client.close()
            return
        server.settimeout(None)
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = id(client)
        with self._lock:
            refused = self.mode == "refuse"  # the mode may have changed since the connection was accepted
            if not refused:
                self._pairs[key] = (client, server)
        if refused:
            self._reset([(client, server)])
        try:
            self._pump(key, client, server)
        except OSError:
            pass
        finally:
            with self._lock:
                self._pairs.pop(key, None)
                self._holed.discard(key)
            client.close()
            server.close()

    def _pump(self, key: int, client: socket.socket, server: socket.socket) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(client, selectors.EVENT_READ, server)
            selector.register(server, selectors.EVENT_READ, client)
            while True:
                for ready, _ in selector.select():
                    data = ready.fileobj.recv(1 << 16)  # type: ignore[union-attr]
                    if not data:
                        return
                    self._pass_on(key, data, ready.data)

    def _pass_on(self, key: int, data: bytes, to: socket.socket) -> None:
        with self._lock:
            if self.mode == "silent" or key in self._holed:
                self.holes += key not in self._holed
                self._holed.add(key)
                return
        if self.mode == "delay":
            time.sleep(self.seconds)
        while self.mode == "drip" and data:
            to.sendall(data[:DRIP_BYTES])
            data = data[DRIP_BYTES:]
            time.sleep(self.seconds)
        if data:
            to.sendall(data)
