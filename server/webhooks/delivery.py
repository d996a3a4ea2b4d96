"""Delivers events to webhooks. A lock ensures that only one server process per database delivers them.

Every POLL_SECONDS, the process that holds the lock reads the pending events. A webhook with the format `json` gets every event at
once, and its cursor moves after a 2xx response. For all other formats, the events are counted in rows (server.webhooks.groups),
from which messages for people are made. After each failure, the pause before the next call doubles, up to ten minutes. If the
lock is lost during a call because the database connection breaks, the next holder may deliver the same events again, but no
event is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import Webhook
from server.logs import OncePerCause
from server.webhooks import groups, registry
from server.webhooks.messages import message_of
from server.webhooks.transport import Outcome, Smtp, Transport

log = logging.getLogger("stablessm.webhooks")

POLL_SECONDS = 2.0
CLOSE_SECONDS = 3.0
GROUPED_EVENTS = 1000  # events that are counted in one transaction
LOCK = 0x57AB1E56


class WebhookDelivery:
    """The delivery thread of one server process. The thread waits while another process holds the lock."""

    def __init__(
        self,
        database: Database,
        *,
        token: str | None,
        allowed: frozenset[str],
        base_url: str,
        smtp: Smtp | None = None,
        waits: groups.Waits | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.database, self.token, self.base_url = database, token, base_url
        self.transport = Transport(token, allowed, base_url, smtp)
        self._waits, self._clock = waits or groups.Waits(), clock
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
        """Send one webhook its pending events or its next message; returns True if something was delivered."""
        failures = self._failures.setdefault(number, OncePerCause())
        try:
            with self.database.read() as session:
                webhook = session.get(Webhook, number)
            if webhook is None or webhook.failures >= registry.MAX_FAILURES:
                return False  # the webhook was deleted or disabled in the meantime
            outcome = self._deliver_events(webhook) if webhook.format == "json" else self._deliver_message(webhook)
        except SQLAlchemyError as error:
            if failures.is_news(type(error)):
                log.warning("webhook %d waits for the database: %s", number, str(error).partition("\n")[0])
            return False
        except Exception as error:  # a fault of this program; the pool would keep the exception to itself
            self._next[number] = time.monotonic() + registry.MAX_PAUSE_SECONDS
            if failures.is_news(type(error)):
                log.exception("webhook %d failed, next try in %.0f s", number, registry.MAX_PAUSE_SECONDS)
            return False
        if outcome is None:
            return False
        if outcome.accepted:
            failures.worked()
            self._woken.set()  # there may be more events
        else:
            self._next[number] = time.monotonic() + registry.pause(webhook.failures + 1)
            if failures.is_news(outcome.answer):
                log.warning("webhook %d: %s", number, outcome.answer)
        return outcome.accepted

    def _deliver_events(self, webhook: Webhook) -> Outcome | None:
        """Send pending events to a program, as they are. None if there are none."""
        now = self._clock()
        with self.database.read() as session:
            news = registry.due(session, webhook, self.base_url)
            events, silenced = groups.split_silenced(session, news.events, now)
        outcome = self.transport.send_events(webhook, events) if events else None
        if outcome is None and news.cursor == webhook.cursor:
            return None
        with self.database.write() as session:
            if outcome is None or outcome.accepted:
                registry.move_cursor(session, webhook.id, news.cursor)
                for why, kept in silenced.items():
                    groups.record_events(session, webhook, kept, "silenced", why, now)
            self._mark(session, webhook, outcome)
            if outcome is not None and (outcome.accepted or self._gives_up(webhook)):
                state = "sent" if outcome.accepted else "failed"
                groups.record_events(session, webhook, events, state, outcome.answer, now)
        return outcome

    def _deliver_message(self, webhook: Webhook) -> Outcome | None:
        """Count pending events, then send people the next message that is due. None if none is."""
        now = self._clock()
        self._count_events(webhook, now)
        with self.database.read() as session:
            if not groups.anything_due(session, webhook, now):
                return None
        with self.database.write() as session:
            groups.repeat_due(session, webhook, now)
            rows, runs = groups.next_message(session, webhook, now)
        if not rows:
            return None
        outcome = self.transport.send_message(webhook, message_of(rows, runs, self.base_url))
        with self.database.write() as session:
            self._mark(session, webhook, outcome)
            if outcome.accepted:
                groups.mark_sent(session, rows, runs, outcome.answer, now, self._waits)
            else:
                groups.mark_not_sent(session, rows, outcome.answer, now, given_up=self._gives_up(webhook))
        return outcome

    def _count_events(self, webhook: Webhook, now: float) -> None:
        """Move all pending events into rows. Rows and cursor change in the same transaction, so no event is counted twice."""
        while not self._stopping.is_set():
            with self.database.read() as session:
                news = registry.due(session, webhook, self.base_url, GROUPED_EVENTS)
            if news.cursor == webhook.cursor:
                return
            with self.database.write() as session:
                groups.store_events(session, webhook, news.events, now, self._waits)
                registry.move_cursor(session, webhook.id, news.cursor)
            webhook.cursor = news.cursor

    @staticmethod
    def _mark(session: Session, webhook: Webhook, outcome: Outcome | None) -> None:
        if outcome is not None and outcome.accepted:
            registry.mark_delivered(session, webhook.id, outcome.answer)
        elif outcome is not None:
            registry.mark_failed(session, webhook.id, outcome.answer)

    @staticmethod
    def _gives_up(webhook: Webhook) -> bool:
        """True if this failure switches the webhook off."""
        return webhook.failures + 1 >= registry.MAX_FAILURES


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
