"""Lost workers are noticed by their silence, and a queue nobody looks at is rung for again."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from sqlalchemy import select

from server import jobs
from server.db import Database
from server.models import AlertRow, Run
from server.ring import QUEUE
from stablessm_core.config import parse_config
from worker.reaper import LEASE_SECONDS, TICK_SECONDS, Caretaker

MACHINE = {"devices": ["cpu"], "data": {}}


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    with database.write() as session:
        jobs.submit(session, parse_config({"task": {"name": "polynomial_memory"}}))
    yield database
    database.close()


def _claim(database: Database) -> jobs.Claim:
    with database.write() as session:
        claim = jobs.claim(session, "elsewhere:1:1", MACHINE)
    assert claim is not None
    return claim


def _tick(caretaker: Caretaker, seconds: float) -> None:
    for _ in range(int(seconds / 0.1)):
        caretaker.tick()
        time.sleep(0.1)


def test_a_silent_run_goes_back_to_the_queue_and_a_beating_one_does_not(database: Database) -> None:
    claim = _claim(database)
    news: list[int] = []
    caretaker = Caretaker(database, None, news.append, lease=0.5)
    for _ in range(10):
        with database.write() as session:
            assert jobs.heartbeat(session, claim.run_id, claim.attempt) is not None
        _tick(caretaker, 0.1)
    assert news == []
    _tick(caretaker, 1.0)
    assert news == [claim.run_id]
    with database.read() as session:
        assert session.get_one(Run, claim.run_id).status == "queued"
        assert session.scalars(select(AlertRow.kind)).all() == ["worker_lost"]
    with database.write() as session:
        assert jobs.heartbeat(session, claim.run_id, claim.attempt) is None, "who wakes up later has lost its lease"


def test_a_lost_worker_is_noticed_within_thirty_seconds() -> None:
    assert LEASE_SECONDS + 2 * TICK_SECONDS <= 30


@pytest.mark.redis
def test_a_queue_that_stands_still_is_rung_for_again(database: Database, redis_url: str) -> None:
    caretaker = Caretaker(database, redis_url, lambda _run_id: None, unclaimed=0.3)
    with redis.Redis.from_url(redis_url) as client:
        _tick(caretaker, 0.2)
        assert client.llen(f"stablessm:{QUEUE}") == 0, "not before its time"
        _tick(caretaker, 0.5)
        deadline = time.monotonic() + 5
        while client.llen(f"stablessm:{QUEUE}") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        _claim(database)
        _tick(caretaker, 0.2)
        before = client.llen(f"stablessm:{QUEUE}")
        _tick(caretaker, 1.0)
        assert client.llen(f"stablessm:{QUEUE}") == before, "nothing waits any more"
