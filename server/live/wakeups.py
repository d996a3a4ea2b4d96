"""What wakes the live hub: the database file's change counter, Postgres NOTIFY or Redis pub/sub.

All of them only say "look again"; the hub also looks every 2 s by itself, so a lost wake-up costs time, never data.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Awaitable, Callable

from sqlalchemy import make_url

from server.database.connection import Database
from server.live.hub import Hub
from server.runs.worker_wakeups import EVENTS_CHANNEL, EVENTS_NOTIFY

log = logging.getLogger("stablessm.live")

POLL_SECONDS = 0.05
RETRY_SECONDS = 1.0


class Alarm:
    """The tasks that wake one hub; `connected` tells whether the fast way works now."""

    def __init__(self, hub: Hub, database: Database, broker_url: str | None) -> None:
        self.hub, self.database, self.broker_url = hub, database, broker_url
        self.connected = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self.database.path is not None:
            way = self._watch_file
        elif self.broker_url and self.broker_url.startswith("redis"):
            way = self._subscribe
        else:
            way = self._listen
        self._task = asyncio.create_task(self._keep(way))

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _keep(self, way: Callable[[], Awaitable[None]]) -> None:
        while True:
            try:
                await way()
            except _errors() as error:
                level = logging.WARNING if self.connected else logging.DEBUG
                log.log(level, "live wake-ups are lost, polling until they are back: %s: %s", type(error).__name__, error)
            self._become(False)
            await asyncio.sleep(RETRY_SECONDS)

    def _become(self, connected: bool) -> None:
        self.connected = connected
        self.hub.push(connected)

    async def _watch_file(self) -> None:
        # 2.5 us per look: cheap enough for the event loop itself
        connection = sqlite3.connect(f"file:{self.database.path}?mode=ro", uri=True, isolation_level=None)
        try:
            before = None
            self._become(True)
            while True:
                await asyncio.sleep(POLL_SECONDS)
                if self.hub.channels:
                    (now,) = connection.execute("PRAGMA data_version").fetchone()
                    if now != before:
                        before = now
                        self.hub.wake()
        finally:
            connection.close()

    async def _listen(self) -> None:
        import psycopg

        url = make_url(self.database.url).set(drivername="postgresql").render_as_string(hide_password=False)
        async with await psycopg.AsyncConnection.connect(url, autocommit=True, connect_timeout=5) as connection:
            await connection.execute(f"LISTEN {EVENTS_NOTIFY}")
            self._become(True)
            self.hub.wake()  # what came while nobody listened
            while True:
                async for _ in connection.notifies(stop_after=1):  # with all that came in the same packet
                    pass
                self.hub.wake()
                await asyncio.sleep(POLL_SECONDS)  # what rings meanwhile is heard in one go

    async def _subscribe(self) -> None:
        from redis import asyncio as redis

        assert self.broker_url is not None
        client = redis.Redis.from_url(self.broker_url, socket_connect_timeout=3, health_check_interval=5, socket_keepalive=True)
        async with client, client.pubsub() as subscription:
            await subscription.subscribe(EVENTS_CHANNEL)
            self._become(True)
            self.hub.wake()
            while True:
                if await subscription.get_message(ignore_subscribe_messages=True, timeout=5) is not None:
                    self.hub.wake()


def _errors() -> tuple[type[Exception], ...]:
    import psycopg
    from redis import RedisError

    return OSError, sqlite3.Error, psycopg.Error, RedisError
