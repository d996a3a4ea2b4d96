"""A watched run reaches a real server: once, whole, and with the right status, whatever happens on the way."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from click.testing import CliRunner

import stablessm
from server.cli.sync import sync
from stablessm_core.outside.run import Run
from stablessm_core.report.frames import frame
from tests.core.outside.stand_ins import Mamba2Mixer
from tests.server.http_service import BEARER, TOKEN, running

pytestmark = [pytest.mark.both_engines, pytest.mark.slow]


@pytest.fixture
def address(database_url: str, tmp_path: Path) -> Iterator[str]:
    with running(database_url, tmp_path, runs_per_minute=0) as (address, _):
        yield address


def watched(tmp_path: Path, **more: Any) -> tuple[Run, torch.optim.Optimizer, list[torch.Tensor]]:
    """A run, its optimizer, and its only weight before each step."""
    model = Mamba2Mixer(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.1)
    weights: list[torch.Tensor] = []
    optimizer.register_step_pre_hook(lambda *_: weights.append(model.A_log.detach().clone()))
    more = {"dir": tmp_path / "files", "token": TOKEN, "project": "p", "config": {"lr": 0.01}} | more
    return stablessm.watch(model, optimizer, **more), optimizer, weights


def train(run: Run, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for _ in range(steps):
        run.loss(1.0)
        optimizer.step()
        run.log({"val/acc": run.step / 1000})


def get(address: str, path: str) -> Any:
    answer = httpx.get(address + path, headers=BEARER, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def wait_for(condition: Any, seconds: float = 20) -> None:
    ends = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.05)


def check_stored(address: str, run_id: int, weights: list[torch.Tensor], status: str) -> dict[str, Any]:
    """The run's description, after a check that every step is stored once with its bits."""
    found = get(address, f"/api/runs/{run_id}/series/ssm/0/weight?max_points=100000")
    assert found["step"] == list(range(1, len(weights) + 1))
    assert np.asarray(found["value"], np.float32).tobytes() == torch.stack(weights).numpy().tobytes()
    metric = get(address, f"/api/runs/{run_id}/series/val/acc?max_points=100000")
    assert metric["step"] == list(range(1, len(weights) + 1))
    run: dict[str, Any] = get(address, f"/api/runs/{run_id}")
    assert run["status"] == status
    return run


def test_a_watched_run_is_stored_as_it_was_trained(address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, optimizer, weights = watched(tmp_path, url=address, name="tiny", tags=["a"], notes="a note", total_steps=500)
    assert run.url is not None
    run_id = int(run.url.rsplit("/", 1)[1])
    train(run, optimizer, 300)
    run.alert("look", "here", level="error")
    run.finish()
    stored = check_stored(address, run_id, weights, "finished")
    assert (stored["kind"], stored["project"], stored["name"], stored["tags"]) == ("reported", "p", "tiny", ["a"])
    assert (stored["notes"], stored["reported_config"]) == ("a note", {"lr": 0.01})
    assert stored["layers"] == [{"name": "Mamba2Mixer", "path": "A_log", "width": 5, "note": "at gate zero"}]
    assert (stored["how"]["optimizer"], stored["how"]["total_steps"]) == ("sgd", 500)
    assert stored["status_reason"] == "finished after step 300 of 500; 0 steps missing"
    catalogue = get(address, f"/api/runs/{run_id}/series")
    assert [(r["name"], r["module"], r["note"]) for r in catalogue["records"]] == [("A_log", "Mamba2Mixer", "at gate zero")]
    meanings = {series["name"]: series["meaning"] for series in catalogue["series"]}
    assert meanings["ssm/0/gradient"].endswith("Gradient: unknown.")
    assert "Gradient" not in meanings["ssm/0/weight"]
    alerts = get(address, f"/api/runs/{run_id}/alerts")["alerts"]
    assert [(a["kind"], a["severity"], a["message"]) for a in alerts] == [("reported", "critical", "look: here")]
    assert list((tmp_path / "files").iterdir()) == []  # everything is stored, so the file is gone
    assert run.url in capfd.readouterr().err
    assert httpx.get(run.url, headers=BEARER, timeout=120).status_code == 200


def test_the_cancel_button_asks_the_loop_to_stop(address: str, tmp_path: Path) -> None:
    run, optimizer, _ = watched(tmp_path, url=address)
    assert run.url is not None
    train(run, optimizer, 5)
    assert not run.should_stop
    httpx.post(f"{address}/api/runs/{run.url.rsplit('/', 1)[1]}/cancel", headers=BEARER).raise_for_status()
    wait_for(lambda: train(run, optimizer, 1) or run.should_stop)
    run.finish("cancelled", "stopped")


def test_a_run_goes_on_in_a_later_process_and_replaces_the_steps_after_its_checkpoint(address: str, tmp_path: Path) -> None:
    name = "8d3b2c6e-43b5-4a43-8d8a-3c05e7d1a001"
    run, optimizer, first = watched(tmp_path, url=address, id=name)
    train(run, optimizer, 30)
    run.finish("failed", "out of memory")
    run, optimizer, second = watched(tmp_path, url=address, id=name, resume="must", from_step=20)
    assert run.url is not None
    train(run, optimizer, 30)
    run.finish()
    check_stored(address, int(run.url.rsplit("/", 1)[1]), first[:20] + second, "finished")


def test_offline_files_are_sent_later_and_again_without_doubling(database_url: str, tmp_path: Path) -> None:
    run, optimizer, weights = watched(tmp_path, mode="offline")
    train(run, optimizer, 200)
    run.alert("once")
    run.finish()
    (file,) = (tmp_path / "files").glob("*.ssmr")
    with running(database_url, tmp_path, runs_per_minute=0) as (address, _):
        cli = CliRunner(env={"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN})
        done = cli.invoke(sync, [str(tmp_path / "files")])
        assert (done.exit_code, "up to step 200" in done.output) == (0, True), done.output
        check_stored(address, 1, weights, "finished")
        assert not file.exists()
        before = get(address, "/api/runs/1/history")["events"]
        done = cli.invoke(sync, [str(file) + ".synced"])
        assert done.exit_code == 0, done.output
        assert Path(str(file) + ".synced").exists()
        assert get(address, "/api/runs/1/history")["events"] == before
        check_stored(address, 1, weights, "finished")
        assert len(get(address, "/api/runs/1/alerts")["alerts"]) == 1
        assert get(address, "/api/runs")["runs"][0]["id"] == 1


def test_a_damaged_file_is_sent_up_to_its_first_bad_frame(address: str, tmp_path: Path) -> None:
    run, optimizer, weights = watched(tmp_path, mode="offline")
    train(run, optimizer, 20)
    time.sleep(0.4)
    size = os.path.getsize(str(run.path))
    train(run, optimizer, 20)
    run.finish()
    file = Path(str(run.path))
    data = bytearray(file.read_bytes())
    data[size + 20] ^= 0xFF
    file.write_bytes(data)
    done = CliRunner(env={"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}).invoke(sync, [str(file)])
    assert done.exit_code == 0, done.output
    assert "damaged from byte" in done.output
    stored = check_stored(address, 1, weights[:20], "failed")
    assert stored["status_reason"] == "the process ended without a word after step 20; 0 steps missing"


def test_the_file_of_a_killed_process_leaves_a_run_finished_that_a_later_process_ended(address: str, tmp_path: Path) -> None:
    run, optimizer, weights = watched(tmp_path, url=address)
    train(run, optimizer, 20)
    time.sleep(0.4)
    killed = Path(shutil.copy(str(run.path), tmp_path / "killed.ssmr"))
    train(run, optimizer, 20)
    run.finish()
    done = CliRunner(env={"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}).invoke(sync, [str(killed)])
    assert done.exit_code == 0, done.output
    check_stored(address, 1, weights, "finished")


def test_a_file_that_is_no_run_and_an_absent_server_are_one_sentence_each(tmp_path: Path) -> None:
    (tmp_path / "other.ssmr").write_bytes(b"hello")
    run, optimizer, _ = watched(tmp_path, mode="offline")
    train(run, optimizer, 2)
    cli = CliRunner(env={"STABLESSM_URL": f"http://127.0.0.1:{free_port()}", "STABLESSM_TOKEN": TOKEN})
    done = cli.invoke(sync, [str(tmp_path / "other.ssmr"), str(run.path)])
    assert done.exit_code == 1
    assert "is no file of a StableSSM run" in done.output
    assert "still being written" in done.output
    run.finish()
    done = cli.invoke(sync, [str(run.path)])
    assert "does not answer" in done.output


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


def test_a_server_that_is_away_and_comes_back_gets_everything_once(database_url: str, tmp_path: Path) -> None:
    port = free_port()
    run, optimizer, weights = watched(tmp_path, url=f"http://127.0.0.1:{port}")
    train(run, optimizer, 50)
    with running(database_url, tmp_path, listen=port, runs_per_minute=0) as (address, _):
        wait_for(lambda: run.url is not None)
        train(run, optimizer, 50)
        wait_for(lambda: run._uplink.sent == run._outbox.size)
    train(run, optimizer, 50)
    time.sleep(0.6)
    with running(database_url, tmp_path, listen=port, runs_per_minute=0) as (address, _):
        train(run, optimizer, 50)
        wait_for(lambda: run._uplink.failure == "" and run._uplink.sent == run._outbox.size)
        run.finish()
        check_stored(address, 1, weights, "finished")


def test_the_end_takes_at_most_5_seconds_with_the_server_away(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run, optimizer, _ = watched(tmp_path, url=f"http://127.0.0.1:{free_port()}")
    train(run, optimizer, 50)
    began = time.monotonic()
    run.finish()
    assert time.monotonic() - began < 5
    err = capfd.readouterr().err
    assert "does not answer" in err
    assert f"`stablessm sync {run._outbox.path}` sends them" in err


class Stubborn(BaseHTTPRequestHandler):
    """A server that always gives the answer `reply`, after `delay` seconds."""

    reply: tuple[int, bytes] = (200, b"{}")
    delay = 0.0

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(self.delay)
        self.send_response(self.reply[0])
        self.send_header("Content-Length", str(len(self.reply[1])))
        self.end_headers()
        self.wfile.write(self.reply[1])

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def stubborn(status: int, body: bytes, delay: float = 0.0) -> Iterator[str]:
    handler = type("Handler", (Stubborn,), {"reply": (status, body), "delay": delay})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def error(code: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": "no"}}).encode()


@pytest.mark.parametrize(("status", "body", "sentence"), [
    (404, b"Not Found", "does not know how to receive this run"),
    (401, error("unauthorized"), "does not accept the token"),
    (403, error("forbidden"), "may not report this run"),
    (409, error("exists"), "its id is taken"),
    (422, error("invalid"), "refuses this run"),
    (200, b"<html>hello</html>", "is this a StableSSM server?"),
    (200, b"[1, 2]", "is this a StableSSM server?"),
    (201, b'{"run_id": "x", "attempt": null}', "is this a StableSSM server?"),
    (302, b"", "refuses this run"),
    (500, b"oops", "is not ready"),
])  # fmt: skip
def test_a_server_that_refuses_or_lies_is_one_sentence(
    status: int, body: bytes, sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with stubborn(status, body) as url:
        run, optimizer, _ = watched(tmp_path, url=url)
        train(run, optimizer, 20)
        run.finish()
    err = capfd.readouterr().err
    assert sentence in err
    assert len(err.splitlines()) <= 4
    assert len(list((tmp_path / "files").glob("*.ssmr"))) == 1


def test_a_frame_that_can_never_be_stored_is_skipped_and_named(
    address: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run, optimizer, weights = watched(tmp_path, url=address)
    train(run, optimizer, 20)
    time.sleep(0.3)
    run._outbox.append(b"\x02\x00\x00\x00{}")
    train(run, optimizer, 20)
    run.finish()
    check_stored(address, 1, weights, "finished")
    assert capfd.readouterr().err.count("can never store some of the numbers") == 1
    assert frame(b"\x02\x00\x00\x00{}") in next((tmp_path / "files").iterdir()).read_bytes()


PROGRAM = """
import os, signal, sys, time
import torch
import stablessm
from tests.core.outside.stand_ins import Mamba2Mixer
model = Mamba2Mixer(5)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
for p in model.parameters():
    p.grad = torch.full_like(p, 0.1)
with stablessm.watch(model, optimizer, url=sys.argv[1], dir=sys.argv[2]) as run:
    for i in range(200):
        run.loss(1.0)
        optimizer.step()
        run.log({"val/acc": run.step / 1000})
    time.sleep(0.3)
    if sys.argv[3] == "kill": os.kill(os.getpid(), signal.SIGKILL)
    if sys.argv[3] == "term": os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(30)
"""


@pytest.mark.parametrize("end", ["kill", "term"])
def test_a_killed_process_loses_nothing_that_was_completed(end: str, address: str, tmp_path: Path) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "STABLESSM_TOKEN": TOKEN}
    files = tmp_path / "files"
    code = subprocess.run([sys.executable, "-c", PROGRAM, address, str(files), end], env=environment, check=False).returncode
    assert code == (-signal.SIGKILL if end == "kill" else 143)
    model = Mamba2Mixer(5)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    weights = []
    for p in model.parameters():
        p.grad = torch.full_like(p, 0.1)
    for _ in range(200):
        weights.append(model.A_log.detach().clone())
        optimizer.step()
    if end == "kill":
        assert get(address, "/api/runs/1")["status"] == "running"
        done = CliRunner(env={"STABLESSM_URL": address, "STABLESSM_TOKEN": TOKEN}).invoke(sync, [str(files)])
        assert done.exit_code == 0, done.output
    stored = check_stored(address, 1, weights, "failed" if end == "kill" else "cancelled")
    if end == "term":
        assert stored["status_reason"] == "SIGTERM after step 200; 0 steps missing"
        assert list(files.iterdir()) == []
