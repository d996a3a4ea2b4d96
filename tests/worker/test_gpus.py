"""A GPU trains for one worker at a time: booked by UUID, across workers, and free only when its training process is gone."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import Worker
from server.runs.answers import waits_for
from tests.worker.station import SMALL, Station
from worker.gpus import Booking, Gpu, GpuError, visible_gpus

A, B = "GPU-0aaaaaaa-1111-2222-3333-444444444444", "GPU-0bbbbbbb-1111-2222-3333-444444444444"


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose nvidia-smi lists two GPUs; gives the folder of their locks."""
    nvidia_smi(tmp_path, f"printf '0, {A}, NVIDIA H100\\n1, {B}, NVIDIA L4\\n'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("STABLESSM_GPU_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "locks"


def nvidia_smi(folder: Path, script: str) -> None:
    program = folder / "bin" / "nvidia-smi"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("named", "uuids"),
    [(None, [A, B]), ("1,0", [B, A]), ("1", [B]), (B, [B]), ("GPU-0b", [B]), ("0,0", [A]), ("", []), ("-1", [])],
)
def test_a_gpu_is_known_by_its_uuid_however_it_is_named(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, uuids: list[str]
) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert [gpu.uuid for gpu in visible_gpus()] == uuids


def test_part_of_a_gpu_is_booked_under_its_own_name(two_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c6d")
    assert [gpu.uuid for gpu in visible_gpus()] == ["MIG-5c6d"]


@pytest.mark.parametrize("named", ["2", "GPU-0", "GPU-9"])
def test_a_name_that_fits_no_gpu_or_two_is_refused_with_those_there_are(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with pytest.raises(GpuError, match=f"names '{named}'; this machine has 0 .{A}., 1 .{B}.; CUDA_VISIBLE_DEVICES= "):
        visible_gpus()


def test_gpus_that_cannot_be_listed_are_an_error_and_a_machine_without_any_is_none(two_gpus: Path, tmp_path: Path) -> None:
    nvidia_smi(tmp_path, "exit 9")
    assert visible_gpus(tmp_path) == []
    (tmp_path / "nvidia0").touch()
    with pytest.raises(GpuError, match="this machine has GPUs, and nvidia-smi cannot list them"):
        visible_gpus(tmp_path)


def test_no_gpu_is_booked_twice(tmp_path: Path) -> None:
    gpus = [Gpu(A, "H100"), Gpu(B, "L4")]
    mine, other = Booking(gpus, tmp_path / "locks"), Booking(gpus, tmp_path / "locks")
    assert mine.take(0) == mine.take(0) == gpus[0]
    assert other.take(0) == gpus[1]
    assert mine.take(1) is None
    assert other.take(1) is None
    assert (mine.names, other.names) == (["H100"], ["L4"])
    other.release()
    assert mine.take_all() == 2
    assert mine.names == ["H100", "L4"]
    mine.release()


def test_workers_of_every_user_can_book_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        Booking([Gpu(A, "H100")], tmp_path / "locks").take(0)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks" / A).stat().st_mode) == 0o644


def test_a_lock_is_a_file_in_the_folder_whatever_the_gpu_is_called(tmp_path: Path) -> None:
    booking = Booking([Gpu("MIG-../../up", "MIG")], tmp_path / "locks")
    assert booking.take(0) is not None
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["MIG-.._.._up"]
    booking.release()


def test_a_worker_without_a_folder_for_its_locks_says_so_and_ends(
    two_gpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    command = [sys.executable, "-m", "worker", "--data-dir", str(tmp_path / "state")]
    monkeypatch.setenv("STABLESSM_GPU_LOCKS", str(tmp_path / "file"))
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "GPUs cannot be booked in" in done.stderr, "STABLESSM_GPU_LOCKS" in done.stderr) == (1, True, True)
    assert "Traceback" not in done.stderr


@pytest.fixture
def stations(sqlite_url: str, tmp_path: Path) -> Iterator[list[Station]]:
    made = [Station(Database(sqlite_url), tmp_path / f"state-{number}") for number in range(3)]
    yield made
    for station in made:
        station.close()


@pytest.mark.slow
def test_workers_of_one_machine_get_a_gpu_each_and_one_without_waits_for_it(two_gpus: Path, stations: list[Station]) -> None:
    first, second, third = stations
    for station in (first, second):
        station.start("--slots", "1")
    booked = [first.until("training process", lambda s=station: gpus_of(s)) for station in (first, second)]
    assert sorted(map(list, booked)) == [[A], [B]]
    third.start()  # as many lanes as GPUs are free: one, which waits
    problem = third.until("its row", lambda: problem_of(third))
    assert "no free GPU: every GPU here (2) is booked" in problem
    assert not third.children()
    logged = [json.loads(line) for line in third.log.read_text().splitlines()]
    assert [line["level"] for line in logged if "no GPU is free" in line["msg"]] == ["error"]
    with third.database.read() as session:
        waiting = [worker for worker in session.scalars(select(Worker)) if "problem" in worker.capabilities]
    run = third.run(third.submit(SMALL))
    if run.status == "queued":
        assert "no free GPU" in (waits_for(run, waiting, {}, {}) or "")
    left = first.children()
    first.process.send_signal(signal.SIGKILL)
    assert third.until("the GPU of the worker that is gone", lambda: gpus_of(third)) == booked[0]
    assert not [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    assert third.until("its row without the problem", lambda: problem_of(third) == "")


def gpus_of(station: Station) -> set[str] | None:
    """What its training processes may see; None before there is one."""
    return {child.environ()["CUDA_VISIBLE_DEVICES"] for child in station.children()} or None


def problem_of(station: Station) -> str | None:
    """What the worker's row says is wrong, "" if nothing is; None before there is a row."""
    with station.database.read() as session:
        rows = {row.id: row.capabilities for row in session.scalars(select(Worker))}
    mine = [capabilities for name, capabilities in rows.items() if f":{station.process.pid}:" in name]
    return mine[0].get("problem", "") if mine else None
