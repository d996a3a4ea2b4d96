"""Wakes the broadcaster when new data is stored, using SQLite's change counter, PostgreSQL's NOTIFY or Redis pub/sub.

A notification contains no data. The broadcaster also polls every 2 s, so a lost notification causes a delay but no loss of
data.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import make_url

from server.database.connection import Database
from server.lifecycle.worker_wakeups import EVENTS_CHANNEL, EVENTS_NOTIFY
from server.live.broadcaster import Broadcaster

log = logging.getLogger("stablessm.live")

POLL_SECONDS = 0.05
RETRY_SECONDS = 1.0
PING_SECONDS = 2.0
SILENT_SECONDS = 6.0  # a Redis server that does not answer pings for this long counts as lost


class ChangeListener:
    """Wakes one broadcaster; `connected` is True while notifications arrive."""

    def __init__(self, broadcaster: Broadcaster, database: Database, broker_url: str | None) -> None:
        self.broadcaster, self.database, self.broker_url = broadcaster, database, broker_url
        self.connected = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.database.path is not None:
            listen = self._watch_file
        elif self.broker_url and self.broker_url.startswith("redis"):
            listen = self._listen_to_redis
        else:
            listen = self._listen_to_postgres
        self._task = asyncio.create_task(self._keep_listening(listen))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep_listening(self, listen: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await listen()
            except _errors() as error:
                level = logging.WARNING if self.connected else logging.DEBUG
                log.log(level, "no live notifications, polling until they return: %s: %s", type(error).__name__, error)
            self._set_connected(False)
            await asyncio.sleep(RETRY_SECONDS)

    def _set_connected(self, connected: bool) -> None:
        self.connected = connected
        self.broadcaster.set_pushed(connected)

    async def _watch_file(self) -> None:
        # the query takes 2.5 us, so it runs in the event loop
        connection = sqlite3.connect(f"file:{self.database.path}?mode=ro", uri=True, isolation_level=None)
        try:
            before = None
            self._set_connected(True)
            while True:
                await asyncio.sleep(POLL_SECONDS)
                if self.broadcaster.channels:
                    (now,) = connection.execute("PRAGMA data_version").fetchone()
                    if now != before:
                        before = now
                        self.broadcaster.wake()
        finally:
            connection.close()

    async def _listen_to_postgres(self) -> None:
        import psycopg

        url = make_url(self.database.url).set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=5) as connection:
            await connection.execute(f"LISTEN {EVENTS_NOTIFY}")
            self._set_connected(True)
            self.broadcaster.wake()  # data may have been stored while the connection was lost
            while True:
                async for _ in connection.notifies(stop_after=1):  # also reads all other notifications in the same packet
                    pass
                self.broadcaster.wake()
                await asyncio.sleep(POLL_SECONDS)  # notifications during this time share one read

    async def _listen_to_redis(self) -> None:
        from redis import asyncio as redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        assert self.broker_url is not None
        # The client must not retry: each retry would take as long as the first attempt, and `_keep_listening` retries anyway.
        limits: dict[str, Any] = {"socket_connect_timeout": 3, "socket_timeout": 3, "retry": Retry(NoBackoff(), 0)}
        client = redis.Redis.from_url(self.broker_url, socket_keepalive=True, health_check_interval=0, **limits)
        now = asyncio.get_running_loop().time
        async with client, client.pubsub() as subscription:
            await subscription.subscribe(EVENTS_CHANNEL)
            heard = asked = now()
            while now() - heard < SILENT_SECONDS:
                message = await subscription.get_message(timeout=PING_SECONDS)
                if message is not None:
                    heard = now()
                    self._hear(message["type"])
                if now() - asked >= PING_SECONDS:
                    asked = now()
                    await subscription.ping()  # only a ping detects a dead peer: the socket accepts bytes forever
        raise TimeoutError(f"Redis has not answered for {SILENT_SECONDS:g} s")

    def _hear(self, kind: str) -> None:
        """Handle a message: a confirmed subscription, a notification, or the answer to a ping."""
        if kind == "subscribe":  # only now, because even a hanging Redis accepts the connection and the request
            self._set_connected(True)
        if kind in ("subscribe", "message"):
            self.broadcaster.wake()


def _errors() -> tuple[type[Exception], ...]:
    import psycopg
    from redis import RedisError

    return OSError, sqlite3.Error, psycopg.Error, RedisError
