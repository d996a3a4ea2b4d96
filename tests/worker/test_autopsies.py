"""Autopsies with a real worker: what dies is repeated bit for bit, and no kill or stop loses an autopsy."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from server.database.connection import Database
from server.database.models import AutopsyRow
from tests.worker.station import START_SECONDS, Station
from tests.worker.test_forks import DYING, FATAL

pytestmark = pytest.mark.slow

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
    assert not (station.data_dir / "autopsy").exists()
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


def test_an_autopsy_has_the_lowest_priority_and_its_death_fails_it_the_second_time(here: Station) -> None:
    station = here
    station.start("--slots", "1")
    died = station.until_ended(station.submit(LATE))
    for _ in range(2):
        row = until_state(station, died.id, "running")

        def autopsy_process() -> psutil.Process | None:
            return next((child for child in station.children() if child.nice() == 19), None)

        process = station.until("process of the autopsy", autopsy_process)
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        os.kill(process.pid, signal.SIGKILL)
        station.until("loss", lambda lost=row.losses: (now := autopsy_of(station, died.id)) and now.losses > lost)
    row = until_state(station, died.id, "failed")
    assert "SIGKILL" in row.reason
    assert "lost 2 times" in row.reason
    assert station.run(died.id).status == "diverged"


def test_without_autopsies_a_dead_run_gets_none(here: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_AUTOPSY", "off")
    station = here
    station.start("--slots", "1")
    died = station.until_ended(station.submit(DYING))
    assert died.status == "diverged"
    assert autopsy_of(station, died.id) is None
