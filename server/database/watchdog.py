"""No database call may hang for ever: a silent peer (a hung proxy, a vanished network) defeats every timeout of libpq."""

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
    """Shut the socket of every connection that is in use for longer than `limit_seconds`, so that a blocked call fails at once.

    Our transactions take milliseconds. SQLite has no socket and needs no guard.
    """
    if database.dialect != "postgresql":
        return
    in_use: dict[int, tuple[float, Any]] = {}

    def taken(connection: Any, *_: Any) -> None:
        in_use[id(connection)] = (time.monotonic(), connection)

    def given_back(connection: Any, *_: Any) -> None:
        in_use.pop(id(connection), None)  # also when it is closed: another connection may get its id

    def watch() -> None:
        while True:
            time.sleep(limit_seconds / 10)
            for key, (since, connection) in list(in_use.items()):
                if time.monotonic() - since > limit_seconds and in_use.pop(key, None) is not None:
                    _shut(connection)

    event.listen(database.engine, "connect", taken, insert=True)  # a new connection is asked for its settings first
    event.listen(database.engine, "checkout", taken)
    for end in ("checkin", "invalidate", "soft_invalidate", "close"):
        event.listen(database.engine, end, given_back)
    threading.Thread(target=watch, name="database-watchdog", daemon=True).start()


def _shut(connection: Any) -> None:
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as copy:
            copy.shutdown(socket.SHUT_RDWR)
    except (OSError, psycopg.Error):
        return  # it was closed meanwhile
