"""`stablessm import --follow`: what a program still writes arrives whole, once, and while it is written."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from tests.server.http_service import TOKEN
from tests.server.importing.command import run, stored
from tests.server.importing.reading import spelled

pytestmark = [pytest.mark.slow]
STEPS = 100
EXPECTED = spelled(list(range(STEPS)), [step / 4 for step in range(STEPS)])


def writer(folder: Path, kind: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "tests.server.importing.slow_writer", str(folder), kind, str(STEPS)])


@pytest.mark.parametrize("kind", ["csv", "jsonl", "mlflow", "events"])
def test_what_a_program_writes_arrives_once_while_it_is_written(kind: str, server: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    with writer(folder, kind) as program:
        done = run(server, folder, "-p", "p", "--follow", "--until-idle", "3")
        assert program.wait(30) == 0
    assert done.exit_code == 0, done.output
    news = [int(line.split(": ")[1].split()[0]) for line in done.output.splitlines() if line.endswith("new points")]
    assert sum(news) == STEPS
    assert len(news) > 1  # some arrived before the program ended
    (one,) = stored(server)
    assert one["numbers"] == {"train/loss": EXPECTED}
    assert one["status"] == "finished"
    assert "left out" not in done.output
    again = run(server, folder, "-p", "p")
    assert "(known; only new numbers are added)" in again.output
    assert stored(server)[0]["numbers"] == {"train/loss": EXPECTED}


def test_ctrl_c_ends_the_runs_and_a_later_call_goes_on(server: httpx.Client, tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "log.jsonl").write_text('{"step": 0, "loss": 0.0}\n{"step": 1, "lo')
    environment = os.environ | {"STABLESSM_URL": str(server.base_url).rstrip("/"), "STABLESSM_TOKEN": TOKEN}
    command = [sys.executable, "-m", "server", "import", str(folder), "-p", "p", "--follow"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True) as program:
        until = time.monotonic() + 60
        while not server.get("/api/runs").json()["runs"] and time.monotonic() < until:
            time.sleep(0.1)
        assert stored(server)[0]["status"] == "running"
        time.sleep(1)
        program.send_signal(signal.SIGINT)
        output, _ = program.communicate(timeout=30)
    assert (program.returncode, "stopped" in output) == (0, True)
    assert stored(server)[0]["numbers"] == {"train/loss": EXPECTED[:1]}
    with (folder / "log.jsonl").open("a") as file:
        file.write('ss": 0.25}\n')
    assert run(server, folder, "-p", "p", "--follow", "--until-idle", "1").exit_code == 0
    (one,) = stored(server)
    assert (one["numbers"], one["status"]) == ({"train/loss": EXPECTED[:2]}, "finished")


def test_until_idle_belongs_to_follow(server: httpx.Client, tmp_path: Path) -> None:
    done = run(server, tmp_path, "-p", "p", "--until-idle", "1")
    assert (done.exit_code, "--until-idle needs --follow" in done.output) == (2, True)
