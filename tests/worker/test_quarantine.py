"""When a worker stops claiming runs because of its machine, when it continues, and where the reason is shown."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from click.testing import CliRunner

from server.cli import doctor
from server.cli.main import main
from server.database.connection import Database
from server.database.models import Worker
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.data.files import DataError, MissingData
from tests.server.http_service import application, client_of
from tests.worker.station import SMALL, Station
from worker.failures import machine_fault
from worker.quarantine import IN_A_ROW, RETRY_SECONDS, Quarantine, _group_memory

TINY = SMALL | {"train": SMALL["train"] | {"steps": 5}}


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quarantine(tmp_path: Path, clock: Clock) -> Quarantine:
    return Quarantine(tmp_path, 0, clock=clock)


def test_several_runs_in_a_row_that_failed_because_of_the_machine_stop_the_claims(quarantine: Quarantine, clock: Clock) -> None:
    for number in range(1, IN_A_ROW):
        quarantine.blame("gpu", number, "CUDA error: an illegal instruction was encountered")
        assert quarantine.admits(0)
    quarantine.blame("gpu", IN_A_ROW, "CUDA error: an illegal instruction was encountered")
    assert quarantine.shown()["quarantine"]["kind"] == "gpu"
    assert "CUDA error" in quarantine.shown()["quarantine"]["reason"]
    assert not quarantine.admits(0)
    clock.now += RETRY_SECONDS[0]
    assert quarantine.admits(0)
    assert not quarantine.admits(1), "only one run at a time may test the machine"


def test_the_pause_doubles_with_each_failed_try_and_a_trained_run_ends_the_quarantine(
    quarantine: Quarantine, clock: Clock
) -> None:
    for number in range(IN_A_ROW):
        quarantine.blame("memory", number, "out of memory")
    for power in range(1, 8):
        clock.now += min(RETRY_SECONDS[1], RETRY_SECONDS[0] * 2 ** (power - 1))
        assert quarantine.admits(0)
        quarantine.blame("memory", 10 + power, "out of memory")
        assert not quarantine.admits(0)
    quarantine.trained()
    assert quarantine.admits(0)
    assert quarantine.shown() == {}


def test_a_trained_run_between_two_failures_starts_the_count_again(quarantine: Quarantine) -> None:
    for number in range(3 * IN_A_ROW):
        quarantine.blame("gpu", number, "CUDA error: unspecified launch failure")
        quarantine.trained()
        assert quarantine.admits(0)


def test_a_full_disk_stops_the_claims_at_once_and_they_start_again_after_a_pause(quarantine: Quarantine, clock: Clock) -> None:
    quarantine.blame("disk", 1, "disk full: No space left on device")
    assert not quarantine.admits(0)
    clock.now += 30
    assert quarantine.admits(0), "a quota shows no free space, so only another try can show that there is room"


def test_faults_of_the_machine_are_told_from_faults_of_the_run(tmp_path: Path) -> None:
    def fault(error: BaseException) -> str | None:
        return machine_fault(error, tmp_path)

    wrapped = RuntimeError("compilation failed")
    wrapped.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert fault(wrapped) == fault(OSError(errno.EDQUOT, "quota")) == "disk"
    assert fault(OSError(errno.EROFS, "Read-only file system", str(tmp_path / "runs/1/log.txt"))) == "disk"
    assert fault(PermissionError(errno.EACCES, "denied", "/root/file of the task")) is None
    assert fault(MemoryError()) == "memory"
    assert fault(RuntimeError("CUDA error: an illegal memory access was encountered")) == "gpu"
    assert fault(RuntimeError("CUDA error: device-side assert triggered")) is None
    assert fault(MissingData("words.txt: no such file")) == "data"
    assert fault(DataError("words.txt: is empty")) is None
    assert fault(ValueError("shapes do not fit")) is None


def test_several_lanes_that_meet_the_same_full_disk_cause_one_pause(quarantine: Quarantine, clock: Clock) -> None:
    for number in range(8):
        quarantine.blame("disk", number, "disk full: No space left on device")
    clock.now += 30
    assert quarantine.admits(0)


def test_memory_is_short_only_if_little_of_a_limit_is_left(tmp_path: Path) -> None:
    gib = 1 << 30
    for name, text in {
        "memory.max": 16 * gib,
        "memory.current": 15 * gib,
        "memory.stat": f"active_file {gib}\ninactive_file 0",
    }.items():
        (tmp_path / name).write_text(str(text))
    assert _group_memory(tmp_path) == (2 * gib, 16 * gib)
    (tmp_path / "memory.max").write_text("max")
    assert _group_memory(tmp_path) == (0, 0), "a group without a limit is not judged"


@pytest.fixture
def station(sqlite_url: str, tmp_path: Path) -> Iterator[Station]:
    station = Station(Database(sqlite_url), tmp_path / "state")
    yield station
    station.close()


def data_of(station: Station) -> dict[str, str]:
    with station.database.read() as session:
        return {name: state for worker in session.query(Worker) for name, state in worker.capabilities.get("data", {}).items()}


@pytest.mark.slow
def test_a_run_whose_data_this_worker_lost_returns_to_the_queue_and_others_train(station: Station) -> None:
    words = station.data_dir / "data" / "words.txt"
    words.parent.mkdir(parents=True)
    words.write_text("to be or not to be " * 500)
    station.start("--slots", "1")
    station.until("the worker's data sets", lambda: "words.txt" in data_of(station))
    words.unlink()  # the worker notices this when it looks again, or when a run needs the file
    run_id = station.submit({"task": {"name": "char_lm", "file": "words.txt"}, "train": {"steps": 3, "eval_every": 0}})
    station.until("the worker to notice", lambda: "words.txt" not in data_of(station))
    other = station.submit(TINY)
    assert station.until_ended(other).status == "finished"
    run = station.run(run_id)
    assert (run.status, run.workers_lost) == ("queued", 0), run.status_reason
    assert station.alerts(run_id) in ([], ["worker_unfit"])  # none if the worker looked at its data before it claimed the run


@pytest.mark.slow
def test_runs_with_a_fault_of_their_own_do_not_stop_a_worker(station: Station) -> None:
    station.start("--slots", "1")
    broken = {
        "task": {"name": "polynomial_memory", "length": 20},
        "train": {"steps": 5, "scan_backend": "triton", "device": "cpu"},
    }
    failed = [station.submit(broken) for _ in range(IN_A_ROW + 1)]
    assert [station.until_ended(run_id).status for run_id in failed] == ["failed"] * (IN_A_ROW + 1)
    assert station.until_ended(station.submit(TINY)).status == "finished"
    with station.database.read() as session:
        assert not [worker for worker in session.query(Worker) if "quarantine" in worker.capabilities]


@pytest.mark.slow
def test_api_page_metrics_queued_runs_and_doctor_show_why_a_worker_claims_no_runs(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_torch", lambda _: [])
    database = Database(sqlite_url)
    reason = "its disk is full or cannot be written: 3 MiB are free"
    shown = {"kind": "disk", "reason": reason, "since": time.time()}
    with database.write() as session:
        lifecycle.register_worker(session, "host:1:2", "host", 1, {"devices": ["cpu"], "data": {}, "quarantine": shown})
        lifecycle.register_worker(session, "other:1:2", "other", 1, {"devices": ["cpu"], "data": {}, "queues": ["other"]})
    with client_of(application(sqlite_url, tmp_path)) as client:
        workers = {worker["host"]: worker for worker in client.get("/api/workers").raise_for_status().json()["workers"]}
        assert workers["host"]["quarantine"] == shown
        assert workers["other"]["quarantine"] is None
        assert reason in client.get("/workers").text
        assert 'stablessm_quarantined{kind="disk",worker="host:1:2"} 1.0' in client.get("/metrics").text
        assert 'stablessm_quarantined{kind="",worker="other:1:2"} 0.0' in client.get("/metrics").text
        run_id = client.post("/api/runs", json=TINY).raise_for_status().json()["id"]
        assert reason in _waits_for(client, run_id)
    done = CliRunner().invoke(main, ["doctor", "--data-dir", str(tmp_path), "--database-url", sqlite_url])
    assert (done.exit_code, reason in done.output) == (1, True), done.output
    database.close()


def _waits_for(client: httpx.Client, run_id: int) -> str:
    return str(client.get(f"/api/runs/{run_id}").raise_for_status().json()["waits_for"])


@pytest.mark.slow
def test_the_doctor_reports_too_little_free_space(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_torch", lambda _: [])
    arguments = ["doctor", "--data-dir", str(tmp_path), "--database-url", sqlite_url]
    done = CliRunner().invoke(main, arguments, env={"STABLESSM_MIN_FREE_MIB": "1000000"})
    assert (done.exit_code, "1,000,000 MiB are wanted" in done.output) == (1, True), done.output
