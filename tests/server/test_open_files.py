"""With too few open files, server and worker refuse to start in one sentence; with as many as they say they need, they work."""

from __future__ import annotations

import contextlib
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from server.http.serving import FILES
from server.open_files import SERVER_NEEDS, needed_by_worker

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BEARER = {"Authorization": "Bearer a-token-of-sixteen-and-more"}
CONFIG = {"task": {"name": "polynomial_memory"}, "train": {"steps": 3, "eval_every": 0}}
CONNECTIONS = 100


@contextlib.contextmanager
def started(folder: Path, files: int, *command: str, soft: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A program of this checkout that may open `files` files."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "STABLESSM_TOKEN": BEARER["Authorization"].split()[1]}
    process = subprocess.Popen(
        [sys.executable, "-m", *command, "--data-dir", str(folder)], env=environment, text=True, stderr=subprocess.PIPE,
        stdout=subprocess.PIPE, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft or files, files)),
    )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


@pytest.mark.parametrize(
    ("command", "who", "needed"),
    [
        (("server", "serve"), "the server", SERVER_NEEDS),
        (("server", "up"), "the server", SERVER_NEEDS),
        (("worker", "--slots", "3"), "a worker with slots: 3", needed_by_worker(3)),
    ],
    ids=["serve", "up", "worker"],
)
def test_with_48_open_files_each_program_says_in_one_sentence_what_it_needs(
    tmp_path: Path, command: tuple[str, ...], who: str, needed: int
) -> None:
    with started(tmp_path, 48, *command) as process:
        output = process.communicate(timeout=60)
    assert process.returncode == 1
    assert output == ("", (
        f"Error: {who} needs at least {needed} open files, but the hard limit of this process is 48: raise it with "
        "`ulimit -Hn 1024`, LimitNOFILE= of systemd, or `--ulimit nofile=1024` of Docker\n"
    ))  # fmt: skip


def test_server_and_worker_work_with_as_many_open_files_as_they_say_they_need(tmp_path: Path, free_port: int) -> None:
    address = ("127.0.0.1", free_port)
    with (
        started(tmp_path, SERVER_NEEDS, "server", "serve", "--port", str(free_port), soft=48) as server,
        httpx.Client(base_url=f"http://127.0.0.1:{free_port}", headers=BEARER, timeout=60) as client,
    ):
        _until(lambda: server.poll() is None and _answers(client))
        run = client.post("/api/runs", json=CONFIG).raise_for_status().json()["id"]
        with started(tmp_path, needed_by_worker(1), "worker", "--slots", "1", soft=48), contextlib.ExitStack() as stack:
            early = [socket.create_connection(address) for _ in range(CONNECTIONS)]
            _until(lambda: client.get(f"/api/runs/{run}").json()["status"] == "finished")
            for one in early:  # the server has closed connections that were silent for long, on a busy machine all of them
                one.close()
            open_ones = [stack.enter_context(socket.create_connection(address)) for _ in range(CONNECTIONS)]
            for one in open_ones:
                one.sendall(f"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1:{free_port}\r\n\r\n".encode())
            assert [one.recv(64)[:15] for one in open_ones] == [b"HTTP/1.1 200 OK"] * CONNECTIONS
        assert len(client.get(f"/api/runs/{run}/series/train/loss").raise_for_status().json()["step"]) == CONFIG["train"]["steps"]
    assert FILES > SERVER_NEEDS > CONNECTIONS


def _answers(client: httpx.Client) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return client.get("/healthz").status_code == 200
    return False


def _until(ask: object, seconds: float = 120.0) -> None:
    assert callable(ask)
    deadline = time.monotonic() + seconds
    while not ask():
        assert time.monotonic() < deadline
        time.sleep(0.05)
