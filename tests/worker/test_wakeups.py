"""Wake-ups of workers and live streams arrive within milliseconds through a broker. A broken broker causes no delay."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
import redis
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from server.database.connection import Database
from server.database.watchdog import guard
from server.lifecycle.event_wakeups import publisher
from server.lifecycle.worker_wakeups import EVENTS_CHANNEL, EVENTS_NOTIFY, QUEUE, _sender, wake_workers
from server.settings import Settings
from tests.worker.station import Station
from worker.celery_app import listen
from worker.gpus import Booking
from worker.lanes import Lanes
from worker.process_pool import ProcessPool

pytestmark = [pytest.mark.spread, pytest.mark.slow]


@contextmanager
def _hung_server() -> Iterator[str]:
    """A port that accepts connections and never answers."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.redis
def test_a_wake_up_is_one_message_without_arguments(redis_url: str) -> None:
    wake_workers(redis_url)
    with redis.Redis.from_url(redis_url) as client:
        deadline = time.monotonic() + 90
        while not (messages := client.lrange(f"stablessm:{QUEUE}", 0, -1)) and time.monotonic() < deadline:
            time.sleep(0.02)
    assert len(messages) == 1
    assert b'"task": "stablessm.wake"' in messages[0]
    assert b'"argsrepr": "()"' in messages[0]


def test_waking_workers_without_a_broker_does_nothing() -> None:
    wake_workers(None)
    wake_workers("")


def test_a_broker_that_is_down_or_hangs_delays_no_caller() -> None:
    def seconds(url: str) -> float:
        begun = time.perf_counter()
        wake_workers(url)
        return time.perf_counter() - begun

    with _hung_server() as address:
        hung, down = f"redis://{address}/0", "redis://127.0.0.1:1/1"
        # The shortest of five times: this thread may be paused at any time, but a call that waits would wait every time.
        assert min(seconds(hung) for _ in range(5)) < 0.05
        assert min(seconds(down) for _ in range(5)) < 0.05
        deadline = time.monotonic() + 90
        while time.monotonic() < deadline and not (_sender(hung).lost and _sender(down).lost):
            time.sleep(0.05)
        assert _sender(down).lost >= 1
        assert _sender(hung).lost >= 1, "a hung broker must count as failed after 5 s"


@pytest.mark.redis
def test_a_stopped_worker_leaves_wake_ups_to_other_workers(sqlite_url: str, redis_url: str, tmp_path: Path) -> None:
    lanes = Lanes(
        Settings(data_dir=tmp_path, database_url=sqlite_url), ProcessPool(1, Booking([], tmp_path)), spool_bytes=1 << 20
    )
    listener = threading.Thread(target=listen, args=(redis_url, lanes), daemon=True)
    listener.start()
    with redis.Redis.from_url(redis_url) as client:

        def listening() -> bool:
            return any(one["cmd"] == "brpop" and one["db"] == database for one in client.client_list())

        database = str(client.get_connection_kwargs()["db"])
        _until(listening)
        lanes.stop.set()
        listener.join(60)
        assert not listener.is_alive(), "the listening thread did not end"
        wake_workers(redis_url)
        _until(lambda: client.llen(f"stablessm:{QUEUE}") == 1)
        assert not listening()


def test_a_worker_can_stop_while_the_broker_is_unreachable(sqlite_url: str, tmp_path: Path) -> None:
    Database(sqlite_url).migrate()
    station = Station(Database(sqlite_url), tmp_path, broker_url="redis://127.0.0.1:1/0")
    process = station.start()
    try:
        _until(lambda: "Cannot connect to" in station.log.read_text())
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()


def _until(true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 90
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.redis
def test_new_events_are_published_through_redis_if_redis_is_the_broker(sqlite_url: str, redis_url: str) -> None:
    database = Database(sqlite_url)
    with redis.Redis.from_url(redis_url) as client, client.pubsub(ignore_subscribe_messages=True) as subscription:
        subscription.subscribe(EVENTS_CHANNEL)
        heard, deadline = None, time.monotonic() + 90
        # Pub/sub ignores database numbers, so there may be messages from other tests.
        while heard != b"987654":
            assert time.monotonic() < deadline
            # Published repeatedly, because the subscription takes a moment and a publisher gives up quickly.
            publisher(database, redis_url)(987_654)
            if (message := subscription.get_message(timeout=1)) is not None:
                heard = message["data"]
    database.close()


@pytest.mark.postgres
def test_new_events_are_published_through_postgresql_without_redis(postgres_url: str) -> None:
    database = Database(postgres_url)
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"LISTEN {EVENTS_NOTIFY}")
        heard, deadline = list[str](), time.monotonic() + 90
        while not heard:
            assert time.monotonic() < deadline
            # Published repeatedly, because a publisher gives up quickly.
            publisher(database, None)(42)
            heard = [n.payload for n in connection.notifies(timeout=5, stop_after=1)]
    assert heard == ["42"]
    database.close()


@pytest.mark.postgres
def test_new_events_of_many_runs_are_published_in_few_transactions(postgres_url: str) -> None:
    database, statements = Database(postgres_url), list[str]()
    event.listen(database.engine, "before_cursor_execute", lambda _c, _u, statement, *_: statements.append(statement))
    with psycopg.connect(postgres_url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(f"LISTEN {EVENTS_NOTIFY}")
        publish, heard, deadline = publisher(database, None), set[str](), time.monotonic() + 90
        for run in range(200):
            publish(run)
        while len(heard) < 200:
            assert time.monotonic() < deadline
            heard |= {n.payload for n in connection.notifies(timeout=5, stop_after=1)}
    assert heard == {str(run) for run in range(200)}
    assert len([one for one in statements if "pg_notify" in one]) < 20
    database.close()


def test_publishing_to_a_hung_redis_is_tried_once_and_then_paused(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database(sqlite_url)
    monkeypatch.setattr("server.lifecycle.event_wakeups.PAUSE_SECONDS", 100.0)
    tries: list[None] = []
    send = redis.Redis.publish
    monkeypatch.setattr(redis.Redis, "publish", lambda *given: (tries.append(None), send(*given)))
    with _hung_server() as address:
        publish = publisher(database, f"redis://{address}/0")
        for run in range(1000):
            publish(run)  # each call would take a second if it tried again
        _until(lambda: bool(tries))
        time.sleep(3)
    assert len(tries) == 1
    database.close()


@pytest.mark.postgres
def test_a_hung_database_call_is_cut_off(postgres_url: str) -> None:
    database = Database(postgres_url)
    guard(database, limit_seconds=0.5)

    def hang() -> None:
        with database.engine.connect() as connection:
            connection.exec_driver_sql("SET LOCAL statement_timeout = 0")  # so that only the guard can end the query
            connection.exec_driver_sql("SELECT pg_sleep(200)")

    begun = time.monotonic()
    with pytest.raises(OperationalError):
        hang()
    assert time.monotonic() - begun < 100
    deadline = time.monotonic() + 90
    while True:
        try:
            with database.engine.connect() as connection:
                assert connection.exec_driver_sql("SELECT 1").scalar() == 1
            break
        except OperationalError:  # if the machine pauses for half a second, the guard also ends this query
            assert time.monotonic() < deadline
    database.close()
