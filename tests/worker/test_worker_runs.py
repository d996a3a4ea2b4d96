"""Runs through a real worker process, polled on SQLite and rung by Celery on PostgreSQL: every fault costs one run at most."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator

import psutil
import pytest
from sqlalchemy import select
from station import LONG_STEP, SMALL, STEPS, TOO_LARGE, Station, away

from server.db import Database
from server.models import Worker
from server.settings import Settings
from worker.reaper import Caretaker
from worker.spool import left_behind

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
    """Steps and losses of the small run when nothing happens to it."""
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
    assert not list((station.data_dir / "runs" / "1").glob("spool/*"))


def test_the_worker_says_what_it_can_do(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    with station.database.read() as session:
        worker = session.scalars(select(Worker)).one()
    assert worker.slots == 2
    assert worker.capabilities["devices"][0] == "cpu"
    assert "torch" in worker.capabilities["backends"]
    assert worker.capabilities["data"]["digits"] == "ok"
    assert worker.capabilities["versions"]["torch"]


@only_polling
def test_a_run_is_given_to_a_process_that_was_warm_before(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    station.until("two warm processes", lambda: len(station.children()) == 2)
    warm = {child.pid for child in station.children()}
    run_id = station.submit(SMALL)
    station.until_step(run_id, 1)
    assert station.trainer_of(run_id).pid in warm
    assert station.until_ended(run_id).status == "finished"


def test_a_run_whose_process_crashes_twice_ends_bit_identical(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    run_id = station.submit(SMALL)
    station.until_step(run_id, 35)
    station.trainer_of(run_id).send_signal(signal.SIGSEGV)
    station.until_step(run_id, 70, attempt=2)
    station.trainer_of(run_id).kill()
    run = station.until_ended(run_id)
    assert (run.status, run.attempt) == ("finished", 3), station.reasons(run_id)
    assert station.losses(run_id) == undisturbed
    reasons = " | ".join(station.reasons(run_id))
    assert "SIGSEGV (segmentation fault)" in reasons
    assert "SIGKILL" in reasons
    assert station.alerts(run_id) == ["worker_lost", "worker_lost"]


@only_polling
def test_a_run_that_always_crashes_fails_after_three_attempts(station: Station) -> None:
    run_id = station.submit(SMALL | {"train": {"steps": 100_000, "checkpoint_every": 0}})
    for attempt in (1, 2, 3):
        station.until_step(run_id, 1, attempt=attempt)
        station.trainer_of(run_id).send_signal(signal.SIGABRT)
        station.until(f"end of attempt {attempt}", lambda n=attempt: station.run(run_id).workers_lost == n)
    run = station.run(run_id)
    assert run.status == "failed"
    assert "SIGABRT" in run.status_reason
    assert "3 workers lost" in run.status_reason


@only_polling
def test_a_run_without_memory_fails_with_that_reason_and_the_next_one_trains(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    run_id = station.submit(TOO_LARGE)
    following = station.submit(SMALL)
    run = station.until_ended(run_id)
    assert run.status == "failed"
    assert run.status_reason.startswith("out of memory: "), run.status_reason
    assert "Traceback" not in run.status_reason
    assert "Traceback" in (station.data_dir / "runs" / str(run_id) / "log.txt").read_text()
    assert station.until_ended(following).status == "finished"
    assert station.losses(following) == undisturbed


@only_polling
def test_a_step_that_does_not_end_raises_an_alert_and_is_cancelled_within_two_seconds(station: Station) -> None:
    run_id = station.submit(LONG_STEP)
    station.until("alert", lambda: station.alerts(run_id) == ["no_progress"])
    begun = time.monotonic()
    station.cancel(run_id)
    run = station.until_ended(run_id, seconds=10)
    assert run.status == "cancelled"
    assert time.monotonic() - begun < 2.5, "half a second of grace on a busy machine"


def test_a_cancelled_run_stops_between_two_steps_and_keeps_its_steps(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    run_id = station.submit(SMALL | {"train": SMALL["train"] | {"steps": 1_000_000}})
    station.until_step(run_id, 40)
    begun = time.monotonic()
    station.cancel(run_id)
    run = station.until_ended(run_id, seconds=10)
    assert (run.status, run.status_reason) == ("cancelled", "cancelled")
    assert time.monotonic() - begun < 2.5
    steps, _ = station.losses(run_id)
    assert steps == list(range(1, run.step + 1))


def test_a_worker_asked_to_stop_leaves_no_process_and_its_run_goes_on_later(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    run_id = station.submit(SMALL)
    station.until_step(run_id, 50)
    assert station.stop(seconds=8) == 0
    run = station.run(run_id)
    assert run.status == "queued", run.status_reason
    assert run.status_reason.startswith("drained")
    with station.database.read() as session:
        assert session.scalars(select(Worker)).all() == []
    station.start()
    run = station.until_ended(run_id)
    assert (run.status, run.attempt, run.workers_lost) == ("finished", 2, 0), station.reasons(run_id)
    assert station.losses(run_id) == undisturbed


@only_polling
def test_a_killed_worker_leaves_no_process_and_its_run_goes_on_elsewhere(
    station: Station, undisturbed: tuple[list[int], bytes]
) -> None:
    run_id = station.submit(SMALL)
    station.until_step(run_id, 40)
    children = station.children()
    station.process.kill()
    station.process.wait()
    _gone, alive = psutil.wait_procs(children, 3)
    assert not alive, "training processes outlive their worker"
    caretaker = Caretaker(station.database, None, lambda _run_id: None, lease=1.0)
    station.until("the caretaker's verdict", lambda: caretaker.tick() or station.run(run_id).status == "queued", seconds=5)
    assert "lost contact" in station.run(run_id).status_reason
    station.start()
    run = station.until_ended(run_id)
    assert (run.status, run.attempt) == ("finished", 2), station.reasons(run_id)
    assert station.losses(run_id) == undisturbed


@only_celery
def test_training_goes_on_while_the_database_is_away(station: Station, undisturbed: tuple[list[int], bytes]) -> None:
    run_id = station.submit(SMALL)
    station.until_step(run_id, 40)
    spool = station.data_dir / "runs" / str(run_id) / "spool" / "attempt-1"
    with away(station.database):
        station.until("telemetry on disk", lambda: sum(1 for _ in left_behind(spool)) >= 3)
    run = station.until_ended(run_id)
    assert (run.status, run.attempt) == ("finished", 1), station.reasons(run_id)
    assert station.losses(run_id) == undisturbed
    assert not spool.exists()
