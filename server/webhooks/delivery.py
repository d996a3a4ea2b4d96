"""Delivers events to webhooks. A lock ensures that only one server process per database delivers them.

Every POLL_SECONDS, the process that holds the lock reads the pending events, calls the addresses in parallel, and moves a
webhook's cursor after a 2xx response. After each failure, the pause before the next call doubles, up to ten minutes. If the
lock is lost during a call because the database connection breaks, the next holder may deliver the same events again, but no
event is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.database.models import Webhook
from server.logs import OncePerCause
from server.webhooks import registry
from server.webhooks.guarded_post import Failed, Refused, post
from stablessm_core import __version__

log = logging.getLogger("stablessm.webhooks")

POLL_SECONDS = 2.0
CLOSE_SECONDS = 3.0
LOCK = 0x57AB1E56


class WebhookDelivery:
    """The delivery thread of one server process. The thread waits while another process holds the lock."""

    def __init__(self, database: Database, *, token: str | None, allowed: frozenset[str], base_url: str) -> None:
        self.database, self.token, self.allowed, self.base_url = database, token, allowed, base_url
        self._stopping, self._woken = threading.Event(), threading.Event()
        self._lock = DeliveryLock(database)
        self._calls: dict[int, Future[bool]] = {}
        self._next: dict[int, float] = {}  # webhook -> time of the next attempt, on the monotonic clock
        self._failures: dict[int, OncePerCause] = {}
        self._pool = ThreadPoolExecutor(4, "webhook")
        self._thread = threading.Thread(target=self._run, name="webhook_delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Stop the thread. This waits for a call in progress, at most CLOSE_SECONDS."""
        self._stopping.set()
        self._woken.set()
        self._thread.join(CLOSE_SECONDS)

    def wake(self, webhook_id: int) -> None:
        """Call this webhook at once, without waiting out the pause after a failure."""
        self._next.pop(webhook_id, None)
        self._woken.set()

    def _run(self) -> None:
        away = False
        while not self._stopping.is_set():
            try:
                self._round()
                away = False
            except SQLAlchemyError as error:
                if not away:
                    log.warning("webhooks wait for the database: %s", str(error).partition("\n")[0])
                away = True
            self._woken.wait(POLL_SECONDS)
            self._woken.clear()
        # The lock is released last, because its next holder would repeat the events of a call in progress.
        self._pool.shutdown(cancel_futures=True)
        self._lock.release()

    def _round(self) -> None:
        with self.database.read() as session:
            active = list(session.scalars(select(Webhook.id).where(Webhook.failures < registry.MAX_FAILURES)))
        if not active or not self._lock.take():
            return
        for number in active:
            call = self._calls.get(number)
            if call is not None and not call.done():
                continue
            if time.monotonic() >= self._next.get(number, 0.0) and not self._stopping.is_set():
                with contextlib.suppress(RuntimeError):  # raised if the thread pool is closed
                    self._calls[number] = self._pool.submit(self._deliver, number)

    def _deliver(self, number: int) -> bool:
        """Send one webhook its pending events; returns True if any were delivered."""
        failures = self._failures.setdefault(number, OncePerCause())
        try:
            with self.database.read() as session:
                webhook = session.get(Webhook, number)
                if webhook is None or webhook.failures >= registry.MAX_FAILURES:
                    return False  # the webhook was deleted or disabled in the meantime
                news = registry.due(session, webhook, self.base_url)
            reason = self._call(webhook, news.events) if news.events else None
            if news.cursor != webhook.cursor or reason is not None:
                with self.database.write() as session:
                    if reason is None and news.events:
                        registry.mark_delivered(session, number, news.cursor)
                    elif reason is None:
                        registry.mark_nothing_to_tell(session, number, news.cursor)
                    else:
                        registry.mark_failed(session, number, reason)
            if reason is not None:
                self._next[number] = time.monotonic() + registry.pause(webhook.failures + 1)
                if failures.is_news(reason):
                    log.warning("webhook %d: %s", number, reason)
            elif news.events:
                failures.worked()
                self._woken.set()  # there may be more events
        except SQLAlchemyError as error:
            if failures.is_news(type(error)):
                log.warning("webhook %d waits for the database: %s", number, str(error).partition("\n")[0])
            return False
        return bool(news.events) and reason is None

    def _call(self, webhook: Webhook, events: list[dict[str, object]]) -> str | None:
        body = json.dumps({"webhook": webhook.id, "sent_at": time.time(), "events": events}, allow_nan=False).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"stablessm/{__version__}",
            "X-StableSSM-Signature": registry.sign(registry.signing_key(self.token, webhook.id, webhook.created_at), body),
        }
        try:
            status = post(webhook.url, body, headers, self.allowed)
        except (Refused, Failed) as error:
            return str(error)
        return None if 200 <= status < 300 else f"it answered {status}"


class DeliveryLock:
    """A lock with one holder per database: a session lock in PostgreSQL, a locked file beside SQLite. The lock is released
    when its process ends."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._connection: Connection | None = None
        self._file: IO[str] | None = None

    def take(self) -> bool:
        """Try to take the lock; returns whether this process holds it now. Raises SQLAlchemyError."""
        path = self.database.path
        return self._take_file(path) if path is not None else self._take_session()

    def release(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                self._connection.execute(text("SELECT pg_advisory_unlock(:key)"), {"key": LOCK})
            self._connection.invalidate()  # closing the connection, unlike returning it to the pool, always releases the lock
            self._connection.close()
        if self._file is not None:
            self._file.close()
        self._connection = self._file = None

    def _take_file(self, database: Path) -> bool:
        if self._file is None:
            file = database.with_name(f"{database.name}.webhooks").open("a", encoding="utf-8")
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                file.close()
                return False
            self._file = file
        return True

    def _take_session(self) -> bool:
        if self._connection is not None:
            try:
                self._connection.execute(text("SELECT 1"))
            except SQLAlchemyError:
                self.release()
            else:
                return True
        connection = self.database.engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        if connection.execute(text("SELECT pg_try_advisory_lock(:key)"), {"key": LOCK}).scalar_one():
            self._connection = connection
            return True
        connection.close()
        return False
