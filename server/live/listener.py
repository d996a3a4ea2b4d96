"""Wake the broadcaster when something was stored: by SQLite's change counter, PostgreSQL's NOTIFY or Redis pub/sub.

A notification only says "look again". The broadcaster also looks every 2 s by itself, so a lost one costs time, never data.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable

from sqlalchemy import make_url

from server.database.connection import Database
from server.live.broadcaster import Broadcaster
from server.runs.worker_wakeups import EVENTS_CHANNEL, EVENTS_NOTIFY

log = logging.getLogger("stablessm.live")

POLL_SECONDS = 0.05
RETRY_SECONDS = 1.0


class ChangeListener:
    """Wakes one broadcaster; `connected` says whether notifications arrive now."""

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
                log.log(level, "live wake-ups are lost, polling until they are back: %s: %s", type(error).__name__, error)
            self._set_connected(False)
            await asyncio.sleep(RETRY_SECONDS)

    def _set_connected(self, connected: bool) -> None:
        self.connected = connected
        self.broadcaster.set_pushed(connected)

    async def _watch_file(self) -> None:
        # asking takes 2.5 us: cheap enough for the event loop itself
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
            self.broadcaster.wake()  # for what was stored while the connection was away
            while True:
                async for _ in connection.notifies(stop_after=1):  # and all others of the same packet
                    pass
                self.broadcaster.wake()
                await asyncio.sleep(POLL_SECONDS)  # notifications of this time share one look

    async def _listen_to_redis(self) -> None:
        from redis import asyncio as redis

        assert self.broker_url is not None
        client = redis.Redis.from_url(self.broker_url, socket_connect_timeout=3, health_check_interval=5, socket_keepalive=True)
        async with client, client.pubsub() as subscription:
            await subscription.subscribe(EVENTS_CHANNEL)
            self._set_connected(True)
            self.broadcaster.wake()
            while True:
                if await subscription.get_message(ignore_subscribe_messages=True, timeout=5) is not None:
                    self.broadcaster.wake()


def _errors() -> tuple[type[Exception], ...]:
    import psycopg
    from redis import RedisError

    return OSError, sqlite3.Error, psycopg.Error, RedisError
