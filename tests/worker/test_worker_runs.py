"""Runs with a real worker process, which polls SQLite or is woken by Celery on PostgreSQL: a fault affects at most one run."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Run, Worker
from server.lifecycle import transitions as lifecycle
from server.lifecycle.lost_runs import LostRunReaper
from server.settings import Settings
from stablessm_core.report.outbox import left_behind
from tests.worker.station import LONG_STEP, SMALL, STEPS, TOO_LARGE, Station, TooLate, away, in_time
from worker.writer import DATABASE_AWAY

ALL_STEPS = list(range(1, STEPS + 1))
only_polling = pytest.mark.parametrize("station", ["polling"], indirect=True)
only_celery = pytest.mark.parametrize(
    "station", [pytest.param("celery", marks=[pytest.mark.postgres, pytest.mark.redis])], indirect=True
)


@pytest.fixture(
    scope="module",
    params=["polling", pytest.param("celery", marks=[pytest.mark.postgres, pytest.mark.redis])],
)
def station(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    folder = tmp_path_factory.mktemp("state")
    if request.param == "polling":
        station = Station(Database(Settings(data_dir=folder).database_url), folder)
    else:
        url, broker = (request.getfixturevalue(name) for name in ("module_postgres_url", "module_redis_url"))
        station = Station(Database(url), folder, broker)
    station.database.migrate()
    station.start("--slots", "2")
    yield station
    station.close()


@pytest.fixture(scope="module")
def undisturbed(station: Station) -> tuple[list[int], bytes]:
    """Steps and losses of the small run without any fault."""
    run = station.until_ended(station.submit(SMALL))
    assert (run.status, run.step, run.attempt) == ("finished", STEPS, 1), run.status_reason
    return station.losses(run.id)


def test_a_run_is_trained_and_stored_completely(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    assert undisturbed[0] == ALL_STEPS
    run = station.run(1)
    assert run.result is not None
    assert run.environment is not None
    assert run.result["telemetry_dropped"] == run.result["telemetry_errors"] == 0
    assert run.environment["device"] == "cpu"
    assert station.reasons(1)[0] == "submitted"
    assert [path.name for path in (station.data_dir / "runs" / "1" / "checkpoints").iterdir()] != []
    station.until("the end of its log", lambda: "training ended: finished" in "".join(t for _, t in station.run_log(1)))
    station.until("an empty spool", lambda: not list((station.data_dir / "runs" / "1").glob("spool/*")))


def test_the_worker_reports_its_capabilities(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    def row() -> Worker | None:
        with station.database.read() as session:
            return session.scalars(select(Worker)).one_or_none()

    worker = station.until("the worker's row", row)  # a run may be claimed before this row is written
    assert worker.slots == 2
    assert worker.capabilities["devices"][0] == "cpu"
    assert "torch" in worker.capabilities["backends"]
    assert worker.capabilities["data"]["digits"] == "ok"
    assert worker.capabilities["versions"]["torch"]


@only_polling
def test_a_run_starts_in_a_training_process_that_was_already_warm(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    def scenario() -> None:
        station.until("two warm processes", lambda: len(station.idle()) == 2)
        warm = {child.pid for child in station.idle()}
        run_id = station.submit(SMALL)
        station.until_step(run_id, 1)
        assert station.trainer_of(run_id).pid in warm
        assert station.until_ended(run_id).status == "finished"

    in_time(scenario)


def test_a_run_whose_process_crashes_twice_gives_bit_identical_results(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    def scenario() -> int:
        run_id = station.submit(SMALL)
        station.until_step(run_id, 35)
        station.hit_trainer(run_id, signal.SIGSEGV)
        station.until_step(run_id, 70, attempt=2)
        station.hit_trainer(run_id, signal.SIGKILL)
        run = station.until_ended(run_id)
        if (run.status, run.attempt) == ("finished", 2):
            raise TooLate(f"run {run_id} had finished when its process was killed")
        assert (run.status, run.attempt) == ("finished", 3), station.reasons(run_id)
        return run_id

    run_id = in_time(scenario)
    assert station.losses(run_id) == undisturbed
    reasons = " | ".join(station.reasons(run_id))
    assert "SIGSEGV (segmentation fault)" in reasons
    assert "SIGKILL" in reasons
    assert station.alerts(run_id) == ["trainer_crashed", "trainer_crashed"]
    crash = station.tracebacks(run_id)
    assert set(crash) == {1}, "a process that was killed from outside must have no traceback"
    assert crash[1].startswith("Fatal Python error: Segmentation fault")
    station.until("the end of its log", lambda: "training ended: finished" in "".join(t for _, t in station.run_log(run_id)))
    log = station.run_log(run_id)
    assert {1, 2, 3} == {attempt for attempt, _ in log}
    text = "".join(text for _, text in log)
    assert text.count("training on ") == 3
    # the last checkpoint before the signal depends on the speed of the machine
    assert re.search(r"resuming after step [3-9]0, from its checkpoint", text)
    assert "Fatal Python error" in text
    assert str(station.data_dir) not in "".join([text, crash[1], reasons])


@only_polling
def test_a_run_that_always_crashes_fails_after_three_attempts(station: Station) -> None:
    run_id = station.submit(SMALL | {"train": {"steps": 100_000, "checkpoint_every": 0}})
    for attempt in (1, 2, 3):
        station.until_step(run_id, 1, attempt=attempt)
        station.hit_trainer(run_id, signal.SIGABRT)
        station.until(f"end of attempt {attempt}", lambda n=attempt: station.run(run_id).workers_lost == n)
    run = station.until_ended(run_id)
    assert run.status == "failed"
    assert "SIGABRT" in run.status_reason
    assert "3 attempts lost" in run.status_reason
    assert station.alerts(run_id) == ["trainer_crashed"] * 3


@only_polling
def test_a_run_without_enough_memory_fails_with_this_reason_and_the_next_run_trains(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    run_id = station.submit(TOO_LARGE)
    following = station.submit(SMALL)
    run = station.until_ended(run_id)
    assert run.status == "failed"
    assert run.status_reason.startswith("out of memory: "), run.status_reason
    assert "Traceback" not in run.status_reason
    assert "Traceback" in (station.data_dir / "runs" / str(run_id) / "log.txt").read_text()
    [(attempt, trace)] = station.tracebacks(run_id).items()
    assert attempt == 1
    assert trace.startswith("Traceback (most recent call last):")
    assert 'File "stablessm_core/' in trace
    assert 'File "/' not in trace
    assert station.until_ended(following).status == "finished"
    assert station.losses(following) == undisturbed


@only_polling
def test_a_step_that_does_not_end_raises_an_alert_and_is_cancelled_within_two_seconds(station: Station) -> None:
    def cancelled_after() -> float:
        run_id = station.submit(LONG_STEP)
        station.until("alert", lambda: "no_progress" in station.alerts(run_id))
        run, seconds = _cancelled(station, run_id)
        assert set(station.alerts(run_id)) == {"no_progress"}
        # infinite if the step ended in the meantime, because then no step was cut off
        return seconds if "the training step in progress was cut off" in run.status_reason else float("inf")

    # The grace period is half a second. Several tries, because this process may be paused while it measures.
    assert any(cancelled_after() < 2.5 for _ in range(5))


def test_a_cancelled_run_stops_between_two_steps_and_keeps_its_steps(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    def cancelled_after() -> float:
        run_id = station.submit(SMALL | {"train": SMALL["train"] | {"steps": 1_000_000}})
        station.until_step(run_id, 40)
        run, seconds = _cancelled(station, run_id)
        steps, _ = station.losses(run_id)
        assert steps == list(range(1, run.step + 1))
        # Infinite if the step was cut off, because then its process was paused.
        return seconds if run.status_reason == "cancelled" else float("inf")

    assert any(cancelled_after() < 2.5 for _ in range(5))


def test_a_stopped_worker_leaves_no_process_and_its_run_resumes_later(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    def scenario() -> int:
        if station.process.poll() is not None:
            station.start()
        run_id = station.submit(SMALL)
        station.until_step(run_id, 50)
        worker = f":{station.process.pid}:"
        code, seconds = station.stop()
        run = station.run(run_id)
        if code or seconds > 8 or run.status == "finished":
            raise TooLate(f"stopped with {code} after {seconds:.1f} s, run {run.status}: something stood still")
        assert run.status == "queued", run.status_reason
        assert run.status_reason.startswith("drained")
        with station.database.read() as session:
            assert not [known for known in session.scalars(select(Worker.id)) if worker in known]
        return run_id

    run_id = in_time(scenario)
    station.start()
    run = station.until_ended(run_id)
    assert (run.status, run.attempt, run.workers_lost) == ("finished", 2, 0), station.reasons(run_id)
    assert station.losses(run_id) == undisturbed


@only_polling
def test_a_killed_worker_leaves_no_process_and_its_run_resumes_on_another_worker(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    def scenario() -> int:
        if station.process.poll() is not None:
            station.start()
        run_id = station.submit(SMALL)
        station.until_step(run_id, 40)
        children = station.children()
        station.process.kill()
        station.process.wait()
        _gone, alive = psutil.wait_procs(children, 60)
        assert not alive, "training processes must not outlive their worker"
        station._not_ended(run_id)
        return run_id

    run_id = in_time(scenario)
    reaper = LostRunReaper(station.database, 1.0)
    station.until("the end of its lease", lambda: reaper.reap() or station.run(run_id).status == "queued")
    assert "lost contact" in station.run(run_id).status_reason
    station.start()
    run = station.until_ended(run_id)
    assert (run.status, run.attempt) == ("finished", 2), station.reasons(run_id)
    assert station.losses(run_id) == undisturbed


def test_a_worker_stops_a_run_that_was_given_to_another_worker_and_logs_this(station: Station) -> None:
    run_id = station.submit(SMALL | {"train": SMALL["train"] | {"steps": 1_000_000}})
    station.until_step(run_id, 1)
    trainer = station.trainer_of(run_id)

    def given_away() -> bool:
        trainer.suspend()  # so that only the worker can notice
        try:
            with station.database.write() as session:
                lifecycle.release(session, run_id, 1, "given away by the test")
                claim = lifecycle.claim(session, "another", {"devices": ["cpu"], "data": {}})
                assert claim is not None
                lifecycle.finish(session, claim.run_id, claim.attempt, "cancelled")
            return True
        except DATABASE_AWAY:  # the trainer was suspended during its own transaction
            trainer.resume()
            return False

    station.until("a database that is not locked", given_away)
    _gone, alive = psutil.wait_procs([trainer], 60)
    assert not alive

    def said() -> bool:
        lines = [json.loads(line) for line in station.log.read_text().splitlines()]
        return any("no longer owns the run" in line["msg"] and line["run"] == run_id for line in lines)

    station.until("word of it", said)
    assert (station.run(run_id).status, station.run(run_id).attempt) == ("cancelled", 2)


@only_celery
def test_training_continues_while_the_database_is_unreachable(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    def scenario() -> int:
        run_id = station.submit(SMALL)
        station.until_step(run_id, 40)
        spool = _spool(station, run_id)
        with away(station.database):
            deadline = time.monotonic() + 30
            while sum(1 for _ in left_behind(spool)) < 3:
                if time.monotonic() > deadline:
                    raise TooLate(f"run {run_id} had hardly anything left to record")
                time.sleep(0.02)
        return run_id

    run_id = in_time(scenario)
    run = station.until_ended(run_id)
    assert (run.status, run.attempt) == ("finished", 1), station.reasons(run_id)
    assert station.losses(run_id) == undisturbed
    station.until("the end of its log", lambda: "training ended: finished" in "".join(t for _, t in station.run_log(run_id)))
    # The spool is removed after its last record was stored.
    station.until("an empty spool", lambda: not _spool(station, run_id).exists())


def _cancelled(station: Station, run_id: int) -> tuple[Run, float]:
    """Cancel a run; returns the ended run and the time in seconds until its end."""
    begun = time.monotonic()
    station.cancel(run_id)
    run = station.until_ended(run_id)
    seconds = time.monotonic() - begun
    assert run.status == "cancelled", run.status_reason
    return run, seconds


def _spool(station: Station, run_id: int) -> Path:
    return station.data_dir / "runs" / str(run_id) / "spool" / "attempt-1"
