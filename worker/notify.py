"""Tell the servers that a run has new events. A lost notification costs seconds: servers also look by themselves.

Redis pub/sub where the broker is Redis, else Postgres NOTIFY in a transaction of its own (its commit takes a lock of the whole
database, which must not sit in the transactions that store blocks); on SQLite nothing, since servers watch `data_version`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import redis
from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.runs.worker_wakeups import EVENTS_CHANNEL, EVENTS_NOTIFY

Publish = Callable[[int], None]
PAUSE_SECONDS = 5.0  # after a failure: a bus that hangs must not slow the writing down

log = logging.getLogger(__name__)


def publisher(database: Database, broker_url: str | None) -> Publish:
    """publish(run_id): never raises, takes at most a second when the bus is broken."""
    if broker_url and broker_url.startswith("redis"):
        client = redis.Redis.from_url(broker_url, socket_timeout=1, socket_connect_timeout=1)
        return _patient(lambda run_id: client.publish(EVENTS_CHANNEL, str(run_id)), redis.RedisError)
    if database.dialect == "postgresql":
        engine = database.engine.execution_options(isolation_level="AUTOCOMMIT")

        def notify(run_id: int) -> None:
            with engine.connect() as connection:
                connection.execute(text("SELECT pg_notify(:channel, :run)"), {"channel": EVENTS_NOTIFY, "run": str(run_id)})

        return _patient(notify, SQLAlchemyError)
    return lambda _run_id: None


def _patient(send: Callable[[int], object], broken: type[Exception]) -> Publish:
    quiet_until = 0.0
    missed = 0

    def publish(run_id: int) -> None:
        nonlocal quiet_until, missed
        if time.monotonic() < quiet_until:
            missed += 1
            return
        try:
            send(run_id)
        except broken as error:
            missed += 1
            quiet_until = time.monotonic() + PAUSE_SECONDS
            log.warning("wake-up lost, viewers poll meanwhile: %s", error, extra={"run": run_id, "missed": missed})

    return publish
