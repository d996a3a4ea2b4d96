"""Lost runs are detected by missing heartbeats on the detector's own clock and are requeued once."""

from __future__ import annotations

import time

import pytest
from sqlalchemy import func, select, update

from server.database.connection import Database
from server.database.models import AlertRow, Transition, Worker
from server.lifecycle import transitions as lifecycle
from server.lifecycle.answers import alive_workers, workers_json
from server.lifecycle.lost_runs import TICK_SECONDS, LostRun, LostRunReaper
from server.settings import Settings
from tests.server.recording import CPU, claim, claimed, run_of

pytestmark = pytest.mark.both_engines


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def watched(reaper: LostRunReaper, clock: Clock, seconds: float, step: float = 5.0) -> list[LostRun]:
    lost = []
    for _ in range(int(seconds / step)):
        clock.now += step
        lost += reaper.reap()
    return lost


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def reaper(database: Database, clock: Clock) -> LostRunReaper:
    return LostRunReaper(database, 30.0, clock=clock)


def test_a_run_without_heartbeats_is_requeued_and_a_run_with_heartbeats_is_not(database: Database, clock: Clock) -> None:
    silent, beating = claimed(database), claimed(database)
    told: list[int] = []
    reaper = LostRunReaper(database, 30.0, on_lost=told.append, clock=clock)
    assert reaper.reap() == []
    for _ in range(5):
        assert watched(reaper, clock, 5) == []
        with database.write() as session:
            lifecycle.heartbeat(session, beating.run_id, beating.attempt)
    assert watched(reaper, clock, 5) == [LostRun(silent.run_id, 1, "queued")]
    assert told == [silent.run_id]
    assert "no heartbeat for 30 s" in run_of(database, silent.run_id).status_reason
    assert run_of(database, beating.run_id).status == "running"
    with database.read() as session:
        alert = session.scalars(select(AlertRow)).one()
        seq = session.scalar(select(func.max(Transition.seq)).where(Transition.run_id == silent.run_id))
    assert (alert.kind, alert.run_id, alert.seq) == ("worker_lost", silent.run_id, seq)
    with database.write() as session:
        assert not lifecycle.heartbeat(session, silent.run_id, 1), "a heartbeat after the requeue must be refused"


def test_two_reapers_requeue_a_lost_run_only_once(database: Database, clock: Clock, reaper: LostRunReaper) -> None:
    own = claimed(database)
    other = LostRunReaper(database, 30.0, clock=clock)
    found = []
    for _ in range(8):
        clock.now += 5.0
        found += reaper.reap() + other.reap()
    assert found == [LostRun(own.run_id, 1, "queued")]


def test_a_heartbeat_that_arrives_while_the_reaper_looks_keeps_the_run(database: Database, clock: Clock) -> None:
    own = claimed(database)

    def beat_and_read() -> float:  # the reaper reads its clock after it has read the heartbeats
        if clock.now >= 1030:
            with database.write() as session:
                assert lifecycle.heartbeat(session, own.run_id, own.attempt)
        return clock()

    reaper = LostRunReaper(database, 30.0, clock=beat_and_read)
    reaper.reap()
    assert watched(reaper, clock, 30) == []
    assert run_of(database, own.run_id).status == "running"


def test_a_new_attempt_gets_a_full_lease(database: Database, clock: Clock, reaper: LostRunReaper) -> None:
    own = claimed(database)
    reaper.reap()
    watched(reaper, clock, 25)
    with database.write() as session:
        lifecycle.release(session, own.run_id, own.attempt, "drained")
    claim(database)
    assert watched(reaper, clock, 25) == []
    assert [lost.attempt for lost in watched(reaper, clock, 15)] == [2]


def test_a_reaper_waits_a_full_lease_after_a_gap_in_its_own_observation(
    database: Database, clock: Clock, reaper: LostRunReaper
) -> None:
    claimed(database)
    reaper.reap()
    clock.now += 600  # the database was unreachable, or the machine was suspended
    assert reaper.reap() == []
    assert watched(reaper, clock, 25) == []
    assert len(watched(reaper, clock, 10)) == 1


def test_a_lost_worker_is_detected_within_thirty_seconds() -> None:
    assert Settings().lease_seconds + 2 * TICK_SECONDS <= 30


def test_a_worker_counts_as_alive_for_one_lease(database: Database) -> None:
    with database.write() as session:
        lifecycle.register_worker(session, "w", "host", 1, CPU)
        session.execute(update(Worker).values(seen_at=time.time() - 15.0))
    with database.read() as session:
        assert [worker.id for worker in alive_workers(session, 25.0)] == ["w"]
        assert [answer["alive"] for answer in workers_json(session, 25.0)] == [True]
        assert alive_workers(session, 6.0) == []
        assert [answer["alive"] for answer in workers_json(session, 6.0)] == [False]
