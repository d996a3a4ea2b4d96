"""Autopsies with a real worker: what dies is repeated bit for bit, and no kill or stop loses an autopsy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import delete, select

from server.database.connection import Database
from server.database.models import AlertRow, AutopsyRow, CheckpointRow, Run
from server.errors import Conflict
from server.lifecycle.autopsies import request_autopsy
from server.lifecycle.forking import fork_run
from server.lifecycle.verdicts import judge_run
from server.settings import Settings
from tests.worker.station import SMALL, START_SECONDS, Station
from tests.worker.test_forks import DYING, FATAL
from worker.autopsies import NICE
from worker.autopsy_process import OOM_SCORE

pytestmark = [pytest.mark.slow, pytest.mark.long]

LOWERED = DYING | {
    "model": DYING["model"] | {"n_layers": 1, "d_state": 16},
    "optimizer": {"lr": 0.2},
    "train": DYING["train"] | {"on_warning": "lower_lr", "steps": 120},
}
LATE: dict[str, Any] = DYING | {"train": DYING["train"] | {"checkpoint_every": 0}}


@pytest.fixture
def station(database_url: str, tmp_path: Path) -> Iterator[Station]:
    station = Station(Database(database_url), tmp_path / "state")
    yield station
    station.close()


@pytest.fixture
def here(sqlite_url: str, tmp_path: Path) -> Iterator[Station]:
    station = Station(Database(sqlite_url), tmp_path / "state")
    yield station
    station.close()


def autopsy_of(station: Station, run_id: int) -> AutopsyRow | None:
    with station.database.read() as session:
        return session.get(AutopsyRow, run_id)


def asked(station: Station, run_id: int) -> None:
    """Ask for the autopsy as a user does: then it has the priority of training, and ends soon on a busy machine as well."""
    with suppress(Conflict), station.database.write() as session:  # it is running already
        request_autopsy(session, session.get_one(Run, run_id), step=None, by="ada")


def until_state(station: Station, run_id: int, *states: str, seconds: float = START_SECONDS) -> AutopsyRow:
    def reached() -> AutopsyRow | None:
        row = autopsy_of(station, run_id)
        return row if row is not None and row.state in states else None

    return station.until(f"autopsy of run {run_id} {' or '.join(states)}", reached, seconds)


@pytest.mark.both_engines
def test_a_run_that_dies_gets_an_autopsy_that_repeats_its_bits_and_reaches_its_verdict(station: Station) -> None:
    station.start("--slots", "1")
    died = station.until_ended(station.submit(DYING))
    assert (died.status, died.divergence and died.divergence["step"]) == ("diverged", FATAL)
    queued = autopsy_of(station, died.id)
    assert queued is not None
    assert queued.requested_by is None
    asked(station, died.id)
    row = until_state(station, died.id, "done", "failed")
    assert row.state == "done", row.reason
    findings = row.findings
    assert findings is not None
    assert findings["refused"] is None, findings["refused"]
    assert (findings["step"], findings["bits_equal"], findings["fatal"]) == (FATAL, True, True)
    assert findings["trouble"]["step"] <= 10
    assert findings["from_step"] == 0, "the checkpoint of step 10 lies after the first sign of the trouble"
    assert findings["first_nonfinite"]["value"] in ("NaN", "Infinity", "-Infinity")
    assert findings["batch"]["nonfinite"] == 0
    assert {one["change"] for one in findings["counterfactuals"]} >= {"unchanged", "tenth_of_rate"}
    judged = station.until("verdict", lambda: (run := station.run(died.id)).judged_at and run)
    assert judged.cause == died.cause or judged.cause is not None
    station.until("the removal of its folder", lambda: not (station.data_dir / "autopsy").exists())
    code, _ = station.stop()
    assert code == 0


def test_a_worker_that_is_killed_during_an_autopsy_loses_neither_the_run_nor_the_autopsy(here: Station) -> None:
    station = here
    station.start("--slots", "1", "--lease-seconds", "6")
    died = station.until_ended(station.submit(LATE))
    until_state(station, died.id, "running")
    station.process.kill()
    station.process.wait()
    killed = autopsy_of(station, died.id)
    assert killed is not None
    assert killed.state == "running", "the worker was killed too late"
    assert (station.run(died.id).status, station.run(died.id).attempt) == ("diverged", 1)
    with station.database.write() as session:
        session.get_one(AutopsyRow, died.id).requested_by = "ada"  # so that the second try does not take long on a busy machine
    station.start("--slots", "1", "--lease-seconds", "6")
    row = until_state(station, died.id, "done", "failed")
    assert (row.state, row.losses) == ("done", 1), row.reason
    assert row.findings is not None
    assert row.findings["refused"] is None, row.findings["refused"]
    assert station.run(died.id).status == "diverged"


def test_a_worker_that_stops_gives_its_autopsy_back_within_seconds(here: Station) -> None:
    station = here
    station.start("--slots", "1")
    died = station.until_ended(station.submit(LATE))
    until_state(station, died.id, "running")
    code, seconds = station.stop()
    assert code == 0
    assert seconds < 10
    row = autopsy_of(station, died.id)
    assert row is not None
    assert (row.state, row.losses) in (("queued", 0), ("done", 0))


def test_an_autopsy_has_a_low_priority_and_its_death_fails_it_the_second_time(here: Station) -> None:
    station = here
    station.start("--slots", "1")
    died = station.until_ended(station.submit(LATE))
    for _ in range(2):
        row = until_state(station, died.id, "running")

        def autopsy_process() -> psutil.Process | None:
            return next((child for child in station.children() if child.nice() == NICE), None)

        process = station.until("process of the autopsy", autopsy_process)
        assert os.sched_getscheduler(process.pid) == os.SCHED_BATCH
        os.kill(process.pid, signal.SIGKILL)
        station.until("loss", lambda lost=row.losses: (now := autopsy_of(station, died.id)) and now.losses > lost)
    row = until_state(station, died.id, "failed")
    assert "SIGKILL" in row.reason
    assert "lost 2 times" in row.reason
    assert station.run(died.id).status == "diverged"


def test_a_run_whose_rate_was_lowered_several_times_at_one_step_is_repeated(here: Station) -> None:
    station = here
    station.start("--slots", "1")
    died = next(run for seed in range(12) if _shares_an_alert(station, run := _lowered(station, seed)))
    asked(station, died.id)
    row = until_state(station, died.id, "done", "failed")
    assert row.findings is not None, row.reason
    assert (row.findings["refused"], row.findings["bits_equal"]) == (None, True)


def _lowered(station: Station, seed: int) -> Run:
    """The ended run with this seed. Rounding decides whether it dies."""
    return station.until_ended(station.submit(LOWERED | {"train": LOWERED["train"] | {"seed": seed}}))


def _shares_an_alert(station: Station, run: Run) -> bool:
    """Whether the run died, and two reductions of its rate share one alert."""
    with station.database.read() as session:
        chosen = select(AlertRow.value).where(AlertRow.run_id == run.id, AlertRow.kind == "lr_lowered").order_by(AlertRow.id)
        scales = [float(value) for value in session.scalars(chosen)]
    return run.status == "diverged" and any(scale < 0.5 ** (i + 1) for i, scale in enumerate(scales))


def test_an_autopsy_that_is_not_possible_names_its_reason_and_the_verdict_falls_back(here: Station) -> None:
    station = here
    station.start("--slots", "1")
    died = station.until_ended(station.submit(DYING))
    until_state(station, died.id, "done")
    fork_id = fork_run(
        station.database, Settings(data_dir=station.data_dir), died.id, from_step=10, changes={"optimizer.lr": 0.29}
    )
    fork = station.until_ended(fork_id)
    until_state(station, fork.id, "done")
    with station.database.write() as session:
        session.execute(delete(CheckpointRow).where(CheckpointRow.run_id.in_((died.id, fork.id))))
        run = session.get_one(Run, died.id)
        run.config = run.config | {"task": {"name": "gone"}}
    for run_id, reason in (
        (died.id, "this worker cannot train the run: task.name: 'gone' is not installed here"),
        (fork.id, "the checkpoint of step 10 from which this fork began is missing"),
    ):
        asked(station, run_id)
        row = until_state(station, run_id, "done", "failed")
        assert row.findings is not None, row.reason
        assert reason in row.findings["refused"]
        with station.database.read() as session:
            verdict = judge_run(session, session.get_one(Run, run_id))
        evidence = [one["text"] for one in verdict["evidence"]]
        assert any(one.startswith("The autopsy has no result (") and reason in one for one in evidence), evidence
        assert (verdict["cause"], verdict["confidence"]) == ("eigenvalue_overflow", "inferred")


def test_a_queued_run_is_trained_before_the_autopsy_of_a_dead_one(here: Station) -> None:
    station = here
    died, next_one = (station.submit(config) for config in (DYING, SMALL))
    station.start("--slots", "1")
    ended = station.until_ended(next_one)
    row = until_state(station, died, "running", "done")
    assert ended.finished_at is not None
    assert row.started_at is not None
    assert row.started_at > ended.finished_at


def test_a_requested_autopsy_starts_at_once_while_runs_train_and_an_automatic_autopsy_hangs(here: Station) -> None:
    station = here
    station.start("--slots", "1")
    first = station.until_ended(station.submit(LATE))
    until_state(station, first.id, "running")
    hanging = station.until(
        "process of the automatic autopsy", lambda: next((c for c in station.children() if c.nice() == NICE), None)
    )
    hanging.suspend()
    second = station.until_ended(station.submit(LATE))
    training = station.submit(SMALL | {"train": SMALL["train"] | {"steps": 100_000}})
    station.until("training", lambda: station.run(training).status == "running" and station.run(training).step > 0)
    with station.database.write() as session:
        request_autopsy(session, session.get_one(Run, second.id), step=None, by="ada")
    row = until_state(station, second.id, "done", "failed")
    assert row.state == "done", row.reason
    assert row.findings is not None
    assert row.findings["refused"] is None, row.findings["refused"]
    assert row.started_at is not None
    assert row.started_at - row.requested_at < 15
    assert station.run(training).status == "running"
    waiting = autopsy_of(station, first.id)
    assert waiting is not None
    assert waiting.state == "running"
    hanging.resume()


@pytest.mark.skipif(sys.platform != "linux", reason="the limit exists on Linux only")
def test_the_memory_of_an_autopsy_is_limited() -> None:
    program = """
import numpy as np
from worker.autopsy_process import _limit_memory
_limit_memory(256 << 20)
small = np.ones(16 << 20, np.uint8)
try:
    np.ones(1 << 30, np.uint8)
except MemoryError:
    print("limited", open("/proc/self/oom_score_adj").read().strip())
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["limited", str(OOM_SCORE)], done.stderr


def test_without_autopsies_a_dead_run_gets_none(here: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_AUTOPSY", "off")
    station = here
    station.start("--slots", "1")
    died = station.until_ended(station.submit(DYING))
    assert died.status == "diverged"
    assert autopsy_of(station, died.id) is None
