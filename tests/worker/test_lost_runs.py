"""Lost workers are noticed by their silence, and workers are woken again for a queue that nobody looks at."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import AlertRow, Run
from server.runs import lifecycle
from server.runs.worker_wakeups import QUEUE, wake_workers
from stablessm_core.config import parse_config
from worker.lost_runs import LEASE_SECONDS, TICK_SECONDS, Caretaker

MACHINE = {"devices": ["cpu"], "data": {}}


class Clock:
    """Stands still until it is moved: the machine's own may jump by seconds between two lines."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    with database.write() as session:
        lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}}))
    yield database
    database.close()


def _claim(database: Database) -> lifecycle.Claim:
    with database.write() as session:
        claim = lifecycle.claim(session, "elsewhere:1:1", MACHINE)
    assert claim is not None
    return claim


def test_a_silent_run_goes_back_to_the_queue_and_a_beating_one_does_not(database: Database) -> None:
    claim, clock = _claim(database), Clock()
    news: list[int] = []
    caretaker = Caretaker(database, None, news.append, lease=5.0, clock=clock)

    def pass_by(seconds: int) -> None:
        for _ in range(seconds):
            clock.now += 1.0
            caretaker.tick()

    for _ in range(10):
        with database.write() as session:
            assert lifecycle.heartbeat(session, claim.run_id, claim.attempt) is not None
        pass_by(4)
    assert news == []
    pass_by(2)
    assert news == [claim.run_id]
    with database.read() as session:
        assert session.get_one(Run, claim.run_id).status == "queued"
        assert session.scalars(select(AlertRow.kind)).all() == ["worker_lost"]
    with database.write() as session:
        assert lifecycle.heartbeat(session, claim.run_id, claim.attempt) is None, "who wakes up later has lost its lease"


def test_a_lost_worker_is_noticed_within_thirty_seconds() -> None:
    assert LEASE_SECONDS + 2 * TICK_SECONDS <= 30


@pytest.mark.redis
def test_workers_are_woken_again_for_a_queue_that_stands_still(database: Database, redis_url: str) -> None:
    clock = Clock()
    caretaker = Caretaker(database, redis_url, lambda _run_id: None, unclaimed=3.0, clock=clock)
    with redis.Redis.from_url(redis_url) as client:

        def wakeups() -> int:
            return int(client.llen(f"stablessm:{QUEUE}"))

        assert not caretaker.tick()
        clock.now = 2.9
        assert not caretaker.tick(), "not before its time"
        clock.now = 3.0
        assert caretaker.tick()
        deadline = time.monotonic() + 60
        while wakeups() == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        _claim(database)
        for clock.now in (4.0, 8.0, 100.0, 1000.0):
            assert not caretaker.tick(), "nothing waits any more"
        wake_workers(redis_url)  # wake-ups arrive in order: before this one there was no other
        while wakeups() < 2:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        assert wakeups() == 2
