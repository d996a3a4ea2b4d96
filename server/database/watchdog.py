"""Ends database calls that hang, because no timeout of libpq detects a silent peer (a hung proxy, a lost network)."""

from __future__ import annotations

import os
import socket
import threading
import time
from typing import Any

import psycopg
from sqlalchemy import event

from server.database.connection import Database

LIMIT_SECONDS = 10.0


def guard(database: Database, limit_seconds: float = LIMIT_SECONDS) -> None:
    """Shut down the socket of every connection that is in use for longer than `limit_seconds`, so that a blocked call fails.

    The service's transactions take milliseconds. SQLite has no sockets and needs no guard.
    """
    if database.dialect != "postgresql":
        return
    in_use: dict[int, tuple[float, Any]] = {}

    def taken(connection: Any, *_: Any) -> None:
        in_use[id(connection)] = (time.monotonic(), connection)

    def given_back(connection: Any, *_: Any) -> None:
        in_use.pop(id(connection), None)  # remove closed connections as well: a new connection may get the same id

    def watch() -> None:
        while True:
            time.sleep(limit_seconds / 10)
            for key, (since, connection) in list(in_use.items()):
                if time.monotonic() - since > limit_seconds and in_use.pop(key, None) is not None:
                    _shut(connection)

    # this listener runs before all other listeners (insert=True), because another listener queries the new connection
    event.listen(database.engine, "connect", taken, insert=True)
    event.listen(database.engine, "checkout", taken)
    for end in ("checkin", "invalidate", "soft_invalidate", "close"):
        event.listen(database.engine, end, given_back)
    threading.Thread(target=watch, name="database-watchdog", daemon=True).start()


def _shut(connection: Any) -> None:
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # the connection is already closed
