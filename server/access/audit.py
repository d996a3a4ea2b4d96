"""The audit log: one row per sign-in and per HTTP request that writes, including refused requests.

The middleware server.http.gate records a write request in memory when the response begins. A thread stores these rows in
batches, so no request waits for the database. While the database is unavailable, at most WAITING rows wait in memory;
additional rows are counted, and written only to the process's log. Requests without a valid token are limited to PER_MINUTE
rows per address, so that these requests cannot displace the rows of other requests. A row contains the request's path, but
never its query string or body.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from typing import Any

from sqlalchemy import delete, insert, select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session
from starlette.datastructures import MutableHeaders
from starlette.types import Scope

from server.access.throttle import RateLimit
from server.access.tokens import SECRET, Principal
from server.clock_jumps import ClockJumps
from server.database.connection import Database
from server.database.models import AuditRow

log = logging.getLogger("stablessm.audit")

WAITING = 10_000
PER_MINUTE = 6  # maximum number of rows per minute for an address without a valid token; a burst may have ten times as many
BATCH = 500
SECONDS = 0.5
MAX_ROWS = 1_000_000
PRUNE_SECONDS = 3600.0
RUN = re.compile(r"/api/(?:ingest/)?runs/(\d{1,18})(?:/.*)?")
FIELDS = ("id", "at", "token_id", "token_name", "user_name", "address", "method", "path", "status", "run_id")


class Audit:
    """The audit log of one server process. It counts the rows that wait to be stored (`waiting`), that were lost (`lost`),
    and that the rate limit skipped (`skipped`)."""

    def __init__(self, database: Database, days: int, token: str | None = None) -> None:
        self.database, self.days = database, days
        self._secret = re.compile(f"{SECRET.pattern}|{re.escape(token)}" if token else SECRET.pattern)
        self.lost = self.skipped = self.failures = 0
        self._rows: deque[dict[str, Any]] = deque()
        self._strangers = RateLimit(PER_MINUTE)
        self._writing = threading.Lock()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._pruned, self._clock = float("-inf"), ClockJumps()

    @property
    def waiting(self) -> int:
        return len(self._rows)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="audit", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(5)
        if self._rows:
            log.error("%d rows of the audit log were not stored before the server ended", len(self._rows))

    def note(self, scope: Scope, address: str, who: Principal | None, status: int, headers: MutableHeaders) -> None:
        """Record a write request and the status of its response. This takes a few microseconds."""
        if who is None and self._strangers.take(address):
            self.skipped += 1
            return
        row = {
            "at": time.time(),
            "token_id": who.token_id if who else None,
            "token_name": who.name if who else "",
            "user_name": who.user if who else "",
            "address": address[:60],
            "method": _printable(scope["method"], 10),
            "path": _printable(self._secret.sub("...", scope["path"]), 300),
            "status": status,
            "run_id": _run_id(scope["path"], headers.get("location")),
        }
        if len(self._rows) >= WAITING:
            self.lost += 1
            log.error("cannot store this row of the audit log: %s", row)
            return
        self._rows.append(row)

    def flush(self) -> None:
        """Store all waiting rows. Raises SQLAlchemyError; rows that were not stored remain in memory."""
        with self._writing:
            while self._rows:
                batch = [self._rows.popleft() for _ in range(min(BATCH, len(self._rows)))]
                try:
                    with self.database.write() as session:
                        session.execute(insert(AuditRow), batch)
                except SQLAlchemyError:
                    self._rows.extendleft(reversed(batch))
                    raise

    def _run(self) -> None:
        while True:
            stopping = self._stopping.wait(SECONDS)
            try:
                self.flush()
                if time.monotonic() - self._pruned > PRUNE_SECONDS and not stopping:
                    self._pruned = time.monotonic()
                    if self._clock.jumped():
                        continue
                    with self.database.write() as session:
                        prune(session, self.days)
                self.failures = 0
            except SQLAlchemyError as error:
                self.failures += 1
                if self.failures in (1, 100):  # log the first failure and the hundredth consecutive one
                    log.error("cannot store the audit log, %d rows wait: %s", self.waiting, str(error).partition("\n")[0])
            if stopping:
                return


def prune(session: Session, days: int) -> None:
    """Delete rows that are older than `days` or not among the newest MAX_ROWS."""
    session.execute(delete(AuditRow).where(AuditRow.at < time.time() - days * 86_400.0))
    newest = session.scalar(select(AuditRow.id).order_by(AuditRow.id.desc()).limit(1))
    if newest is not None:
        session.execute(delete(AuditRow).where(AuditRow.id <= newest - MAX_ROWS))


def audit_list_json(
    session: Session, *, cursor: int | None = None, limit: int = 100, run_id: int | None = None
) -> dict[str, Any]:
    """JSON of the rows with ids below `cursor`, newest first, and the cursor of the next page."""
    chosen = select(AuditRow).order_by(AuditRow.id.desc()).limit(limit + 1)
    if cursor is not None:
        chosen = chosen.where(AuditRow.id < cursor)
    if run_id is not None:
        chosen = chosen.where(AuditRow.run_id == run_id)
    rows = list(session.scalars(chosen))
    shown = [{name: getattr(row, name) for name in FIELDS} for row in rows[:limit]]
    return {"audit": shown, "next_cursor": shown[-1]["id"] if len(rows) > limit else None}


def _printable(text: str, length: int) -> str:
    """The text with unprintable characters escaped."""
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text[:length])[:length]


def _run_id(path: str, location: str | None) -> int | None:
    match = RUN.fullmatch(path) or RUN.fullmatch(location or "")
    return int(match[1]) if match else None
