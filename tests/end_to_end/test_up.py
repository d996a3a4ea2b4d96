"""`stablessm up` for one person on one machine: it starts, shows runs, stops, and leaves nothing running."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.installation import COMMAND, Installation, hold_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
LONG = {
    "task": {"name": "polynomial_memory", "length": 40},
    "model": {"d_model": 8, "d_state": 8},
    "train": {"steps": 1_000_000, "batch_size": 8},
}


@pytest.fixture
def installation(data_dir: Path, free_port: int) -> Iterator[Installation]:
    made = Installation(data_dir, free_port)
    try:
        yield made
    finally:
        made.kill_all()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installation]:
    """A running installation for tests that only read from it."""
    with hold_port() as held:
        made = Installation(tmp_path_factory.mktemp("running") / "state", held.getsockname()[1])
        try:
            up(made, "--slots", "2")
            yield made
        finally:
            made.kill_all()


def up(installation: Installation, *more: str) -> subprocess.Popen[bytes]:
    process = installation.start("up", "--port", str(installation.port), "--data-dir", str(installation.data_dir), *more)
    installation.wait_until_ready()
    return process


@pytest.mark.parametrize("with_signal", [signal.SIGINT, signal.SIGTERM])
def test_up_stops_within_ten_seconds_and_leaves_no_process(installation: Installation, with_signal: signal.Signals) -> None:
    def stopped_after() -> float:
        process = up(installation)
        with installation.client() as client:
            run_id = client.post("/api/runs", json=LONG).json()["id"]
            installation.wait_for_step(client, run_id, 20)
            assert len(installation.alive()) >= 3  # server, worker, training child
            with client.stream("GET", f"/api/runs/{run_id}/stream") as response:  # an open page must not delay the shutdown
                assert response.status_code == 200
                begun = time.monotonic()
                assert installation.stop(process, with_signal) == 0, installation.output()
                seconds = time.monotonic() - begun
        installation.wait_until_gone()
        return seconds

    assert any(stopped_after() <= 10 for _ in range(3)), "no shutdown took at most 10 s, although three were measured"


def test_ctrl_c_ends_the_whole_process_group_cleanly(installation: Installation) -> None:
    process = up(installation)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does on Ctrl-C
    assert process.wait(60) == 0, installation.output()
    installation.wait_until_gone()
    assert "Traceback" not in installation.output()


def test_an_interrupted_run_resumes_after_the_next_start(installation: Installation) -> None:
    process = up(installation)
    with installation.client() as client:
        run_id = client.post("/api/runs", json=LONG).json()["id"]
        installation.wait_for_step(client, run_id, 20)
        installation.stop(process)
    up(installation)
    with installation.client() as client:
        kept = client.get(f"/api/runs/{run_id}").json()["step"]
        assert kept >= 20
        installation.wait_for_step(client, run_id, kept + 20)
        run = client.get(f"/api/runs/{run_id}").json()
        assert run["attempt"] == 2
        losses = client.get(f"/api/runs/{run_id}/series/train/loss", params={"to_step": 100}).json()
        assert len(losses["step"]) >= min(run["step"], 100)  # the run goes on between the two requests
        assert losses["step"] == list(range(1, len(losses["step"]) + 1))


def test_a_killed_installation_leaves_no_process_and_starts_again(installation: Installation) -> None:
    process = up(installation)
    with installation.client() as client:
        run_id = client.post("/api/runs", json=LONG).json()["id"]
        installation.wait_for_step(client, run_id, 5)
    process.kill()
    process.wait()
    installation.processes.remove(process)
    installation.wait("end of the orphans", lambda: not installation.alive())
    up(installation)
    with installation.client() as client:
        installation.wait("second attempt", lambda: client.get(f"/api/runs/{run_id}").json()["attempt"] >= 2)


def test_a_second_installation_on_the_same_data_directory_refuses_to_start(running: Installation) -> None:
    command = [COMMAND, "up", "--data-dir", str(running.data_dir), "--port", "0"]
    second = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert second.returncode == 1
    assert str(running.data_dir) in second.stdout + second.stderr
    assert "Traceback" not in second.stderr


def test_an_occupied_port_is_reported_in_one_line(running: Installation, tmp_path: Path) -> None:
    command = [COMMAND, "up", "--data-dir", str(tmp_path / "other"), "--port", str(running.port)]
    second = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert second.returncode == 1
    assert str(running.port) in second.stdout + second.stderr
    assert "Traceback" not in second.stderr


def test_the_printed_address_signs_a_browser_in(running: Installation) -> None:
    # the server answers shortly before it prints its address
    address = running.wait("printed address", lambda: re.search(rf"{running.url}/\?token=\S+\n", running.output()))
    with httpx.Client(follow_redirects=True, timeout=60) as browser:
        page = browser.get(address[0].strip())
        assert page.status_code == 200
        assert "token=" not in str(page.url)
        assert browser.get(f"{running.url}/api/runs").status_code == 200
    assert (running.data_dir / "token").stat().st_mode & 0o777 == 0o600


def test_the_demo_starts_training_at_once_and_is_submitted_only_once(installation: Installation) -> None:
    process = up(installation, "--demo")
    with installation.client() as client:
        runs = client.get("/api/runs", params={"limit": 50}).json()["runs"]
        tasks = [run["config"]["task"]["name"] for run in runs]
        cells = {
            (run["config"]["model"]["reparameterization"]["name"], run["config"]["optimizer"]["lr"])
            for run in runs
            if run["config"]["task"]["name"] == "polynomial_memory"
        }
        assert sorted(tasks) == ["digits"] * 2 + ["polynomial_memory"] * 27
        assert {name for name, _ in cells} == {"direct", "exp", "best"}
        assert len(cells) == 9
        first = installation.wait("a moving run", lambda: next((r for r in listed(client) if r["step"] > 0), None))
        assert client.get(f"/api/runs/{first['id']}/series/train/loss").json()["step"][0] == 1
    installation.stop(process)
    up(installation, "--demo")
    with installation.client() as client:
        assert len(listed(client)) == 29


def listed(client: httpx.Client) -> list[dict[str, object]]:
    runs: list[dict[str, object]] = client.get("/api/runs", params={"limit": 50}).json()["runs"]
    return runs


def test_the_worker_has_the_requested_slots(running: Installation) -> None:
    def slots() -> list[int]:
        with running.client() as client:
            return [worker["slots"] for worker in client.get("/api/workers").json()["workers"]]

    assert running.wait("a worker", slots) == [2]


def test_the_command_line_finds_the_server_by_itself(running: Installation, tmp_path: Path) -> None:
    file = tmp_path / "run.json"
    file.write_text('{"task": {"name": "polynomial_memory", "length": 20}, "train": {"steps": 20, "batch_size": 4}}')
    environment = {"PATH": "/usr/bin:/bin", "STABLESSM_URL": running.url, "STABLESSM_DATA_DIR": str(running.data_dir)}
    command = [COMMAND, "submit", str(file), "--set", "optimizer.lr=0.02", "--watch"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = subprocess.run([COMMAND, "show", "1"], env=environment, capture_output=True, text=True, timeout=150)
    assert "finished" in shown.stdout
    assert "0.02" in shown.stdout
