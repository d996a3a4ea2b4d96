"""A GPU trains for one worker at a time: it is locked by UUID across workers and freed when its training process has ended."""

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
from server.lifecycle.answers import waits_for
from tests.worker.station import SMALL, Station
from worker.gpus import Booking, Gpu, GpuError, visible_gpus

A, B = "GPU-0aaaaaaa-1111-2222-3333-444444444444", "GPU-0bbbbbbb-1111-2222-3333-444444444444"


@pytest.fixture
def two_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Imitates a machine whose nvidia-smi lists two GPUs; returns the folder of their locks."""
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
def test_visible_gpus_are_identified_by_uuid_in_every_notation(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, named: str | None, uuids: list[str]
) -> None:
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    assert [gpu.uuid for gpu in visible_gpus()] == uuids


def test_a_mig_partition_is_identified_by_its_own_name(two_gpus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-5c6d")
    assert [gpu.uuid for gpu in visible_gpus()] == ["MIG-5c6d"]


@pytest.mark.parametrize("named", ["2", "GPU-0", "GPU-9"])
def test_an_unknown_or_ambiguous_gpu_name_is_refused_with_the_existing_gpus(
    two_gpus: Path, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    with pytest.raises(GpuError, match=f"names '{named}'; this machine has 0 .{A}., 1 .{B}.; CUDA_VISIBLE_DEVICES= "):
        visible_gpus()


def test_unlistable_gpus_are_an_error_unless_the_machine_has_no_gpu(two_gpus: Path, tmp_path: Path) -> None:
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


def test_workers_of_every_user_can_book_gpus_whatever_the_umask(tmp_path: Path) -> None:
    umask = os.umask(0o077)
    try:
        Booking([Gpu(A, "H100")], tmp_path / "locks").take(0)
    finally:
        os.umask(umask)
    assert stat.S_IMODE((tmp_path / "locks").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "locks" / A).stat().st_mode) == 0o644


def test_a_gpu_lock_file_is_always_inside_the_lock_folder(tmp_path: Path) -> None:
    booking = Booking([Gpu("MIG-../../up", "MIG")], tmp_path / "locks")
    assert booking.take(0) is not None
    assert [path.name for path in (tmp_path / "locks").iterdir()] == ["MIG-.._.._up"]
    booking.release()


@pytest.mark.slow
def test_a_worker_without_a_usable_lock_folder_ends_with_a_clear_error(
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


@pytest.mark.long
def test_workers_on_one_machine_get_one_gpu_each_and_a_third_worker_waits(two_gpus: Path, stations: list[Station]) -> None:
    first, second, third = stations
    for station in (first, second):
        station.start("--slots", "1")
    booked = [first.until("training process", lambda s=station: gpus_of(s)) for station in (first, second)]
    assert sorted(map(list, booked)) == [[A], [B]]
    # A worker has one lane per free GPU, and at least one lane. No GPU is free for the third worker, so its only lane waits.
    third.start()
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
    """The GPUs that the worker's training processes can see; None before the first process."""
    return {child.environ()["CUDA_VISIBLE_DEVICES"] for child in station.children()} or None


def problem_of(station: Station) -> str | None:
    """The problem in the worker's row: "" if there is no problem, None if there is no row yet."""
    with station.database.read() as session:
        rows = {row.id: row.capabilities for row in session.scalars(select(Worker))}
    mine = [capabilities for name, capabilities in rows.items() if f":{station.process.pid}:" in name]
    return mine[0].get("problem", "") if mine else None
