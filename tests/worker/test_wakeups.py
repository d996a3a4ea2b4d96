"""Doorbell and news: they arrive in milliseconds where there is a bus, and hold up nobody where it is broken."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import psycopg
import pytest
import redis
from sqlalchemy.exc import OperationalError

from server.db import Database
from server.ring import EVENTS_CHANNEL, EVENTS_NOTIFY, QUEUE, _bell, ring
from server.watchdog import guard
from worker.notify import publisher


@contextmanager
def _hung_server() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.redis
def test_a_ring_becomes_one_message_without_arguments(redis_url: str) -> None:
    begun = time.perf_counter()
    ring(redis_url)
    assert time.perf_counter() - begun < 0.05
    with redis.Redis.from_url(redis_url) as client:
        deadline = time.monotonic() + 5
        while not (messages := client.lrange(f"stablessm:{QUEUE}", 0, -1)) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(messages) == 1
    assert b'"task": "stablessm.wake"' in messages[0]
    assert b'"argsrepr": "()"' in messages[0]


def test_without_a_broker_nothing_is_rung() -> None:
    ring(None)
    ring("")


def test_a_broker_that_is_down_or_hangs_holds_up_nobody() -> None:
    with _hung_server() as address:
        begun = time.perf_counter()
        ring(f"redis://{address}/0")
        ring("redis://127.0.0.1:1/0")
        assert time.perf_counter() - begun < 0.05
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and not (_bell(f"redis://{address}/0").lost and _bell("redis://127.0.0.1:1/0").lost):
            time.sleep(0.05)
        assert _bell("redis://127.0.0.1:1/0").lost == 1
        assert _bell(f"redis://{address}/0").lost == 1, "a hung broker is given up after 5 s"


@pytest.mark.redis
def test_news_go_through_redis_where_redis_is_the_broker(sqlite_url: str, redis_url: str) -> None:
    database = Database(sqlite_url)
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(EVENTS_CHANNEL)
        subscription.get_message(timeout=1)
        publisher(database, redis_url)(987_654)
        heard = []
        while (message := subscription.get_message(timeout=1)) is not None:  # pub/sub ignores database numbers: others talk too
            heard.append(message["data"])
    assert b"987654" in heard
    database.close()


@pytest.mark.postgres
def test_news_go_through_postgres_where_there_is_no_redis(postgres_url: str) -> None:
    database = Database(postgres_url)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"LISTEN {EVENTS_NOTIFY}")
        publisher(database, None)(42)
        assert [n.payload for n in connection.notifies(timeout=5, stop_after=1)] == ["42"]
    database.close()


def test_a_broken_bus_costs_a_second_once_and_then_nothing(sqlite_url: str) -> None:
    database = Database(sqlite_url)
    with _hung_server() as address:
        publish = publisher(database, f"redis://{address}/0")
        begun = time.perf_counter()
        for _ in range(100):
            publish(1)
        assert time.perf_counter() - begun < 4.5
    database.close()


@pytest.mark.postgres
def test_a_database_call_that_hangs_is_cut_off(postgres_url: str) -> None:
    database = Database(postgres_url)
    guard(database, limit_seconds=0.5)
    begun = time.monotonic()
    with database.engine.connect() as connection, pytest.raises(OperationalError):
        connection.exec_driver_sql("SELECT pg_sleep(8)")
    assert time.monotonic() - begun < 3
    with database.engine.connect() as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
    database.close()
