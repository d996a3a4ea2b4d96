"""A worker whose disk is full gives its runs back to the queue, claims nothing, says why, and continues when there is room.

The tests use a real small file system, so they need the right to mount one.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Worker
from tests.worker.station import SMALL, Station

pytestmark = [pytest.mark.slow, pytest.mark.long]

RUNS = 4
# a run that writes a checkpoint every few steps and lasts until the test has filled the disk
LASTING = SMALL | {"train": SMALL["train"] | {"steps": 200, "checkpoint_every": 10}}
SHORT = SMALL | {"train": SMALL["train"] | {"steps": 20}}


@pytest.fixture
def station(sqlite_url: str, tmp_path: Path, unavailable: Callable[[str], NoReturn]) -> Iterator[Station]:
    """A worker whose data directory is a file system of 16 MiB; the database is on another one."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", str(folder)], capture_output=True, text=True)
    if mounted.returncode:
        unavailable(f"no small file system could be mounted: {mounted.stderr.strip()}")
    station = Station(Database(sqlite_url), folder)
    yield station
    station.close()
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path) -> Path:
    filler = folder / "filler"
    with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 14))
    return filler


def quarantine(station: Station) -> dict[str, Any] | None:
    with station.database.read() as session:
        workers = session.scalars(select(Worker)).all()
    return next((worker.capabilities["quarantine"] for worker in workers if "quarantine" in worker.capabilities), None)


def test_a_disk_that_fills_during_training_fails_no_run_and_every_run_is_complete_afterwards(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLESSM_MIN_FREE_MIB", "0")  # so that the disk is found full only by a write
    station.start("--slots", "1")
    runs = [station.submit(config) for config in (LASTING, LASTING, SHORT, SHORT)]
    station.until_step(runs[0], 20)
    filler = fill(station.data_dir)
    first = station.until_status(runs[0], "queued", "failed", "finished")
    assert first.status == "queued", first.status_reason
    assert first.status_reason.startswith("disk full"), first.status_reason
    assert first.workers_lost == 0
    assert station.alerts(runs[0]) == ["worker_unfit"]
    shown = station.until("the reason in the worker's row", lambda: quarantine(station))
    assert shown["kind"] == "disk"
    assert str(station.data_dir) not in shown["reason"]
    assert [station.run(run_id).status for run_id in runs] == ["queued"] * RUNS
    assert [station.run(run_id).attempt for run_id in runs] == [1, 0, 0, 0]
    filler.unlink()
    ended = [station.until_ended(run_id) for run_id in runs]
    assert [run.status for run in ended] == ["finished"] * RUNS, [run.status_reason for run in ended]
    undisturbed = station.losses(runs[1])
    assert undisturbed[0] == list(range(1, LASTING["train"]["steps"] + 1))
    assert station.losses(runs[0]) == undisturbed
    station.until("no quarantine", lambda: quarantine(station) is None)


def test_a_worker_without_the_wanted_space_claims_nothing_until_there_is_room(
    station: Station, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STABLESSM_MIN_FREE_MIB", "4")
    filler = fill(station.data_dir)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (3 << 20))  # writing is possible, but less than the wanted space is free
    station.start("--slots", "1")
    runs = [station.submit(SHORT) for _ in range(RUNS)]
    shown = station.until("the reason in the worker's row", lambda: quarantine(station))
    assert "STABLESSM_MIN_FREE_MIB" in shown["reason"]
    assert [station.run(run_id).attempt for run_id in runs] == [0] * RUNS
    filler.unlink()
    assert [station.until_ended(run_id).status for run_id in runs] == ["finished"] * RUNS


def test_a_run_is_given_back_with_a_checkpoint_before_the_disk_is_full(station: Station, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STABLESSM_MIN_FREE_MIB", "8")
    station.start("--slots", "1")
    run_id = station.submit(LASTING | {"train": LASTING["train"] | {"checkpoint_every": 0}})
    station.until_step(run_id, 20)
    filler = fill(station.data_dir)
    with filler.open("r+b") as file:
        file.truncate(filler.stat().st_size - (2 << 20))
    run = station.until_status(run_id, "queued", "failed", "finished")
    assert run.status == "queued", run.status_reason
    assert run.status_reason.startswith("drained: "), run.status_reason
    assert "free" in run.status_reason
    assert station.alerts(run_id) == ["worker_unfit"]
    filler.unlink()
    run = station.until_ended(run_id)
    assert (run.status, run.attempt, run.workers_lost) == ("finished", 2, 0), station.reasons(run_id)
    assert any("resumed after step" in reason for reason in station.reasons(run_id)), station.reasons(run_id)
    assert station.losses(run_id)[0] == list(range(1, LASTING["train"]["steps"] + 1))
