"""Training processes from the fork server are as isolated and as clean as spawned ones, and give the same bits."""

from __future__ import annotations

import ast
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from safetensors.numpy import load_file
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import CheckpointRow, Worker
from server.lifecycle import transitions as lifecycle
from server.settings import Settings
from stablessm_core.spec.config import parse_config
from tests.extending import ROOT
from tests.worker.station import SMALL, STEPS, Station, TooLate, in_time
from worker.fork_server import why_not_fork

pytestmark = pytest.mark.long

SECTION = """
from typing import ClassVar, Literal
from stablessm_core.spec.tasks.polynomial_memory import PolynomialMemory

class Meddler(PolynomialMemory):
    name: Literal["meddler"]
    trained_by: ClassVar[str] = "stablessm_meddler.task:make"
    harm: Literal["none", "state", "segfault", "child"] = "none"
"""
TASK = """
import builtins, ctypes, json, os, random, signal, subprocess, threading
import numpy, torch
from stablessm_core.tasks.polynomial_memory import PolynomialMemoryTask

def make(section, data_root):
    note = {
        "environment": dict(os.environ), "folder": os.getcwd(), "umask": os.umask(0o22), "dtype": str(torch.get_default_dtype()),
        "threads": torch.get_num_threads(), "deterministic": torch.are_deterministic_algorithms_enabled(),
        "python_threads": sorted(thread.name for thread in threading.enumerate()),
        "sigterm": str(signal.getsignal(signal.SIGTERM)), "builtins": hasattr(builtins, "meddled"),
        "seeds": [random.random(), numpy.random.random(), torch.initial_seed()],
    }
    with open(os.environ["MEDDLER_NOTES"], "a") as notes:
        notes.write(json.dumps(note) + "\\n")
    if section.harm == "state":
        os.environ["MEDDLED"] = "1"
        os.chdir("/")
        os.umask(0)
        torch.set_default_dtype(torch.float64)
        torch.set_num_threads(2)
        torch.use_deterministic_algorithms(True)
        threading.Thread(target=threading.Event().wait, name="meddled", daemon=True).start()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        builtins.meddled = True
        for seed in (random.seed, numpy.random.seed, torch.manual_seed):
            seed(0)
        raise RuntimeError("meddled")
    if section.harm == "segfault":
        ctypes.string_at(0)
    if section.harm == "child":
        subprocess.Popen(["sleep", "1000"])
    return PolynomialMemoryTask(section, data_root)
"""


@pytest.fixture(scope="module")
def plug_in(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Installs a plug-in task that can harm its training process. Returns the file with its observations."""
    site = tmp_path_factory.mktemp("site")
    package, metadata = site / "stablessm_meddler", site / "stablessm_meddler-1.0.dist-info"
    files = {
        package / "__init__.py": "", package / "section.py": SECTION, package / "task.py": TASK,
        metadata / "METADATA": "Metadata-Version: 2.1\nName: stablessm-meddler\nVersion: 1.0\n",
        metadata / "entry_points.txt": "[stablessm.tasks]\nmeddler = stablessm_meddler.section:Meddler\n",
    }  # fmt: skip
    for file, text in files.items():
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{site}:{ROOT}")
        patch.setenv("MEDDLER_NOTES", str(site / "notes"))
        yield site / "notes"


@pytest.fixture(scope="module")
def station(plug_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """A worker with two lanes, whose training processes are forked."""
    made = _station(tmp_path_factory.mktemp("forked"))
    made.start("--slots", "2")
    yield made
    made.close()


@pytest.fixture(scope="module")
def spawning(plug_in: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Station]:
    """A worker whose fork server must refuse to fork, because OpenBLAS starts a thread there when numpy is imported."""
    made = _station(tmp_path_factory.mktemp("spawned"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "2")
        made.start("--slots", "1")
    yield made
    made.close()


def _station(folder: Path) -> Station:
    made = Station(Database(Settings(data_dir=folder).database_url), folder)
    made.database.migrate()
    return made


def submit(station: Station, harm: str) -> int:
    """Submit a run of the plug-in task, which is installed for the worker but not for this process."""
    with station.database.write() as session:
        run = lifecycle.submit(session, parse_config(SMALL | {"train": {"steps": 3, "eval_every": 0}}))
        run.config = run.config | {"task": {"name": "meddler", "length": 50, "harm": harm}}
        run.needs_task = "meddler"
    return run.id


def capabilities(station: Station) -> dict[str, Any]:
    def reported() -> dict[str, Any] | None:
        with station.database.read() as session:
            row = session.scalars(select(Worker)).one_or_none()
        return row.capabilities if row and row.capabilities.get("devices") else None

    return station.until("the worker's row", reported)


def fork_server(station: Station) -> psutil.Process:
    def running() -> psutil.Process | None:
        for child in psutil.Process(station.process.pid).children():
            try:
                if "worker.fork_server" in child.cmdline():
                    return child
            except psutil.NoSuchProcess:
                continue  # psutil raises this for a zombie as well
        return None

    return station.until("the fork server", running)


def bits(station: Station, run_id: int) -> tuple[bytes, dict[str, bytes]]:
    """The bits of the losses, and those of model, optimizer and random state in the last checkpoint."""
    with station.database.read() as session:
        rows = session.scalars(select(CheckpointRow).where(CheckpointRow.run_id == run_id).order_by(CheckpointRow.step))
        tensors = load_file(station.data_dir / rows.all()[-1].path)
    learnt = {name: value.tobytes() for name, value in tensors.items() if name.startswith(("model/", "optimizer/", "rng/"))}
    assert any(name.startswith("model/") for name in learnt)
    return station.losses(run_id)[1], learnt


@pytest.fixture(scope="module")
def undisturbed(station: Station) -> tuple[bytes, dict[str, bytes]]:
    """The bits of the small run, trained by a forked process without disturbance."""
    run = station.until_ended(station.submit(SMALL))
    assert (run.status, run.step, run.attempt) == ("finished", STEPS, 1), run.status_reason
    return bits(station, run.id)


def test_a_worker_reports_that_its_training_processes_are_forked(station: Station) -> None:
    known = capabilities(station)
    assert known["processes"] == "forked"
    assert "meddler" in known["tasks"]


def test_a_worker_whose_fork_server_has_threads_spawns_processes_that_give_the_same_bits(
    spawning: Station, undisturbed: tuple[bytes, dict[str, bytes]]
) -> None:
    run = spawning.until_ended(spawning.submit(SMALL))
    assert (run.status, run.attempt) == ("finished", 1), run.status_reason
    assert bits(spawning, run.id) == undisturbed
    assert capabilities(spawning)["processes"].startswith("spawned: it has 2 threads after its imports (python")
    logged = [json.loads(line) for line in spawning.log.read_text().splitlines()]
    assert [line["level"] for line in logged if "training processes are spawned" in line["msg"]] == ["warning"]


def test_changes_of_process_state_by_one_run_do_not_affect_other_runs(
    station: Station, plug_in: Path, undisturbed: tuple[bytes, dict[str, bytes]]
) -> None:
    plug_in.unlink(missing_ok=True)
    ends = [station.until_ended(submit(station, harm)).status for harm in ("none", "none", "state", "state", "none", "none")]
    assert ends == ["finished", "finished", "failed", "failed", "finished", "finished"]
    notes = [json.loads(line) for line in plug_in.read_text().splitlines()]
    seeds = [note.pop("seeds") for note in notes]
    assert notes == [notes[0]] * 6
    for kind, drawn in zip(("random", "numpy", "torch"), zip(*seeds, strict=True), strict=True):
        assert len(set(drawn)) == 6, f"{kind} draws the same random numbers in two processes"
    run = station.until_ended(station.submit(SMALL))
    assert bits(station, run.id) == undisturbed


def test_a_segmentation_fault_fails_only_its_own_run(station: Station, undisturbed: tuple[bytes, dict[str, bytes]]) -> None:
    def scenario() -> tuple[int, int]:
        beside = station.submit(SMALL)
        station.until_step(beside, 10)
        faulty, following = submit(station, "segfault"), station.submit(SMALL)
        failed = station.until_ended(faulty)
        assert (failed.status, failed.workers_lost) == ("failed", 3)
        assert "SIGSEGV (segmentation fault)" in failed.status_reason
        assert "Fatal Python error: Segmentation fault" in (station.data_dir / "runs" / str(faulty) / "log.txt").read_text()
        return beside, following

    for run_id in in_time(scenario):
        run = station.until_ended(run_id)
        assert (run.status, run.attempt) == ("finished", 1), run.status_reason
        assert bits(station, run_id) == undisturbed


def test_child_processes_that_a_run_leaves_behind_are_ended(station: Station) -> None:
    for _ in range(2):
        assert station.until_ended(submit(station, "child")).status == "finished"

    def only_ours() -> bool:
        children = psutil.Process(station.process.pid).children(recursive=True)
        zombies = [child for child in children if child.status() == psutil.STATUS_ZOMBIE]
        return len(zombies) <= 1 and not any("sleep" in child.name() for child in children if child not in zombies)

    # One zombie may remain until the next run reaps it.
    station.until("the end of what they started", only_ours)


def test_runs_are_not_affected_when_the_fork_server_is_killed(
    station: Station, undisturbed: tuple[bytes, dict[str, bytes]]
) -> None:
    def scenario() -> int:
        station.until("two warm processes", lambda: len(station.idle()) == 2)
        before = station.submit(SMALL)
        station.until_step(before, 10)
        server = fork_server(station)
        server.kill()
        runs = [before, *(station.submit(SMALL) for _ in range(4))]
        for run_id in runs:
            run = station.until_ended(run_id)
            assert (run.status, run.attempt) == ("finished", 1), run.status_reason
            assert bits(station, run_id) == undisturbed
        return server.pid

    killed = in_time(scenario)
    assert fork_server(station).pid != killed
    assert capabilities(station)["processes"] == "forked"
    station.until("the log line about its end", lambda: "the fork server ended" in station.log.read_text())


def test_all_child_processes_end_when_the_worker_is_killed(station: Station) -> None:
    def scenario() -> list[psutil.Process]:
        if station.process.poll() is not None:
            station.start("--slots", "2")
        station.until("two warm processes", lambda: len(station.idle()) == 2)
        run_id = station.submit(SMALL)
        station.until_step(run_id, 10)
        everything = psutil.Process(station.process.pid).children(recursive=True)
        station.process.send_signal(signal.SIGKILL)
        station.process.wait()
        if station.run(run_id).status != "running":
            raise TooLate(f"run {run_id} had ended")
        return everything

    everything = in_time(scenario)
    assert len(everything) >= 3  # the fork server, the run's process and the waiting process
    _gone, alive = psutil.wait_procs(everything, 60)
    assert not alive


SERVER = """
import sys
from worker import fork_server
fork_server.preload()
print(fork_server.why_not_fork())
before = set(sys.modules)
from pathlib import Path
from worker.capabilities import report, warm_up
warm_up()
report()
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.train import train
model, steps = {"d_model": 4, "d_state": 4}, {"steps": 2, "device": "cpu"}
config = parse_config({"task": {"name": "polynomial_memory"}, "model": model, "train": steps})
train(config, sink=MemorySink(), data_root=Path(sys.argv[1]), checkpoint_dir=Path(sys.argv[1]))
print(sorted(set(sys.modules) - before))
"""


def test_a_forked_process_imports_almost_no_further_modules(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SERVER, str(tmp_path)], capture_output=True, text=True, check=True)
    refused, imported = done.stdout.splitlines()
    assert refused == "None"
    # CUPTI is CUDA's profiler, and must not be touched before the fork
    assert len([name for name in ast.literal_eval(imported) if name != "torch.profiler._cupti_monitor"]) <= 3, imported


def test_a_process_with_a_second_thread_or_an_open_gpu_is_not_forked(tmp_path: Path) -> None:
    for name in ("task/1", "task/2", "fd"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "comm").write_text("python\n") if name != "fd" else (tmp_path / "fd" / "1").symlink_to("/dev/null")
    assert why_not_fork(tmp_path) == "it has 2 threads after its imports (python, python)"
    (tmp_path / "task/2/comm").unlink()
    (tmp_path / "task/2").rmdir()
    assert why_not_fork(tmp_path) is None
    (tmp_path / "fd/2").symlink_to("/dev/nvidiactl")
    assert why_not_fork(tmp_path) == "it has opened /dev/nvidiactl with its imports"
