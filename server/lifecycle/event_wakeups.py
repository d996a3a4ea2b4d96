"""Notifies the servers that a run has new events. A lost notification only causes a delay, because servers also poll.

Notifications use Redis pub/sub if the broker is Redis, otherwise Postgres NOTIFY. NOTIFY gets its own transaction, because its
commit locks the whole database, which would slow down the transactions that store blocks. With SQLite no notification is sent:
the servers watch `data_version`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.lifecycle.worker_wakeups import EVENTS_CHANNEL, EVENTS_NOTIFY
from server.logs import OncePerCause

Publish = Callable[[int], None]
TOGETHER_SECONDS = 0.05  # a server looks no more often (server.live.listener)
PAUSE_SECONDS = 5.0  # time to wait after a failure, in seconds

log = logging.getLogger(__name__)
_NOTIFY = text("SELECT pg_notify(:channel, run) FROM unnest(CAST(:runs AS text[])) AS run")


def publisher(database: Database, broker_url: str | None) -> Publish:
    """A function publish(run_id) that never raises and never waits."""
    if broker_url and broker_url.startswith("redis"):
        # imported only with a broker, because the import takes a tenth of a worker's start time
        import redis
        from redis.backoff import NoBackoff
        from redis.retry import Retry

        limits = {"socket_timeout": 1, "socket_connect_timeout": 1, "retry": Retry(NoBackoff(), 0)}
        client = redis.Redis.from_url(broker_url, **limits)

        def publish(run_ids: Collection[int]) -> None:
            for run_id in run_ids:
                client.publish(EVENTS_CHANNEL, str(run_id))

        return _Publisher(publish, redis.RedisError).publish
    if database.dialect == "postgresql":
        engine = database.engine.execution_options(isolation_level="AUTOCOMMIT")

        def notify(run_ids: Collection[int]) -> None:
            with engine.connect() as connection:
                connection.execute(_NOTIFY, {"channel": EVENTS_NOTIFY, "runs": [str(run_id) for run_id in run_ids]})

        return _Publisher(notify, SQLAlchemyError).publish
    return lambda _run_id: None


class _Publisher:
    """Sends from its own thread, started on first use, so that a slow Redis or Postgres delays neither lanes nor writers.

    The first notification is sent at once. Those of the next TOGETHER_SECONDS are sent together, each run once.
    """

    def __init__(self, send: Callable[[Collection[int]], object], broken: type[Exception]) -> None:
        self._send, self._broken = send, broken
        self._failures = OncePerCause()
        self._waiting: set[int] = set()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def publish(self, run_id: int) -> None:
        with self._changed:
            self._waiting.add(run_id)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="notify", daemon=True)
                self._thread.start()
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                run_ids, self._waiting = self._waiting, set()
            try:
                self._send(run_ids)
            except self._broken as error:
                if self._failures.is_news(error):
                    log.warning("wake-ups are lost, viewers poll meanwhile: %s", error, extra={"runs": len(run_ids)})
                time.sleep(PAUSE_SECONDS)
            else:
                if missed := self._failures.worked():
                    log.info("wake-ups arrive again", extra={"missed": missed})
                time.sleep(TOGETHER_SECONDS)
