"""Leases, order and numbers do not depend on wall clocks, which may jump (NTP, suspended machines, a weak battery)."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Run, Transition, Worker
from server.lifecycle import transitions as lifecycle
from server.lifecycle.lost_runs import LostRun, LostRunReaper
from stablessm_core.spec.config import parse_config
from tests.server.storing import store_flush, truncate

pytestmark = [pytest.mark.both_engines, pytest.mark.long]

MACHINE = {"devices": ["cpu"], "data": {}}
DAY = 86_400.0


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    database = Database(database_url)
    yield database
    database.close()


def test_clock_jumps_change_neither_the_lease_nor_the_event_order_of_a_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, seconds = 1.7e9, 0.0
    monkeypatch.setattr(time, "time", lambda: now)
    reaper = LostRunReaper(database, 25.0, clock=lambda: seconds)
    with database.write() as session:
        run_id = lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}})).id
    with database.write() as session:
        assert lifecycle.claim(session, "worker", MACHINE) is not None
    for step, jump in enumerate((2 * DAY, -400 * DAY, 30.0, -1e-3, 10_000 * DAY), start=1):
        now += jump
        seconds += 2.0
        with database.write() as session:
            assert lifecycle.heartbeat(session, run_id, 1)
            store_flush(session, run_id, 1, [], [], step)
            truncate(session, run_id, 1, step + 1, f"occasion {step}")
        assert reaper.reap() == [], "a changed clock must not make a run lost"
    with database.write() as session:
        lifecycle.finish(session, run_id, 1, "finished")
    with database.read() as session:
        history = session.scalars(select(Transition).where(Transition.run_id == run_id).order_by(Transition.seq)).all()
        run = session.get_one(Run, run_id)
    assert [t.status for t in history] == ["queued", *["running"] * 6, "finished"]
    assert [t.seq for t in history] == list(range(1, 9))
    assert (run.seq, run.step) == (8, 5)


def test_a_silent_run_is_detected_as_lost_even_if_the_wall_clock_stands_still(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = 0.0
    monkeypatch.setattr(time, "time", lambda: 1.7e9)
    reaper = LostRunReaper(database, 25.0, clock=lambda: seconds)
    with database.write() as session:
        lifecycle.submit(session, parse_config({"task": {"name": "polynomial_memory"}}))
    with database.write() as session:
        assert lifecycle.claim(session, "worker", MACHINE) is not None
    lost: list[LostRun] = []
    while not lost and seconds < 60:
        lost = reaper.reap()
        seconds += 2.0
    assert [one.status for one in lost] == ["queued"]
    assert seconds <= 30.0


def test_a_worker_that_was_removed_because_of_a_clock_jump_registers_again(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with database.write() as session:
        lifecycle.register_worker(session, "here", "here", 1, MACHINE)
    ahead = time.time() + 3 * DAY
    with monkeypatch.context() as there:
        there.setattr(time, "time", lambda: ahead)
        with database.write() as session:
            lifecycle.register_worker(session, "there", "there", 1, MACHINE)
    with database.write() as session:
        assert not lifecycle.beat_worker(session, "here"), "the removed worker must be told to register again"
        lifecycle.register_worker(session, "here", "here", 1, MACHINE)
    with database.read() as session:
        assert set(session.scalars(select(Worker.id))) == {"here", "there"}
