"""A running StableSSM of real processes, started as a user starts it, with the helpers that tests need."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
import psutil

T = TypeVar("T")

COMMAND = str(Path(sys.executable).parent / "stablessm")
MARK = "STABLESSM_TEST_MARK"
FINAL = ("finished", "failed", "diverged", "cancelled")
START_SECONDS = 150.0  # includes importing torch on a busy machine


def hold_port() -> socket.socket:
    """Reserve a port of 127.0.0.1 for the servers of a test, even while no server runs. Servers set SO_REUSEADDR, so they can
    still bind the port. The kernel does not assign it to other sockets or outgoing connections.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held


@dataclass
class Installation:
    """The processes of one installation. A mark in their environment identifies even orphans."""

    data_dir: Path
    port: int
    token: str | None = None
    environment: dict[str, str] = field(default_factory=dict)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    logs: list[Path] = field(default_factory=list)

    def start(self, *arguments: str, inside: Sequence[str] = ()) -> subprocess.Popen[bytes]:
        """Start `stablessm ARGUMENTS` in its own process group, as a shell would. `inside`: a command that runs it."""
        self.data_dir.parent.mkdir(parents=True, exist_ok=True)
        log = self.data_dir.parent / f"{len(self.logs)}-{arguments[0]}.log"
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **self.environment, MARK: self.mark}
        with log.open("wb") as file:
            process = subprocess.Popen(
                [*inside, COMMAND, *arguments],
                stdout=file,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env=environment,
                cwd=self.data_dir.parent,
                start_new_session=True,
            )
        self.logs.append(log)
        self.processes.append(process)
        return process

    def output(self) -> str:
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')}" for log in self.logs)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        token = self.token or (self.data_dir / "token").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=60)

    def wait(self, what: str, ask: Callable[[], T | None], seconds: float = START_SECONDS) -> T:
        """Call `ask` until its result is neither None nor False, and return it. Fails with the output of all processes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            answer = ask()
            if answer is not None and answer is not False:
                return answer
            gone = [p.args for p in self.processes if p.poll() not in (None, 0)]
            assert not gone, f"{gone} ended while waiting for {what}\n{self.output()}"
            time.sleep(0.1)
        raise AssertionError(f"no {what} within {seconds:g} s\n{self.output()}")

    def wait_until_it_answers(self) -> None:
        """Wait until the server answers, with or without a worker."""

        def answers() -> bool:
            try:
                return httpx.get(f"{self.url}/healthz", timeout=60).status_code == 200
            except httpx.TransportError:
                return False

        self.wait("answer", answers)

    def wait_until_ready(self) -> None:
        """Wait until the server answers and a worker that can train has registered."""

        def ready() -> bool:
            try:
                with self.client() as client:
                    answer = client.get("/api/workers")
                    return answer.is_success and any(w["alive"] and w["capabilities"] for w in answer.json()["workers"])
            except (httpx.TransportError, FileNotFoundError):
                return False

        self.wait("server with a worker", ready)

    def wait_for_end(self, client: httpx.Client, run_id: int, seconds: float = START_SECONDS) -> dict[str, Any]:
        """Wait until the run's status is final, and return the run."""

        def ended() -> dict[str, Any] | None:
            run: dict[str, Any] = client.get(f"/api/runs/{run_id}").raise_for_status().json()
            return run if run["status"] in FINAL else None

        return self.wait(f"end of run {run_id}", ended, seconds)

    def wait_for_step(self, client: httpx.Client, run_id: int, step: int = 1) -> None:
        self.wait(f"step {step} of run {run_id}", lambda: client.get(f"/api/runs/{run_id}").json()["step"] >= step)

    def alive(self) -> list[psutil.Process]:
        """Every living process that this installation started, orphans included."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get(MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
        return found

    def stop(self, process: subprocess.Popen[bytes], with_signal: int = signal.SIGTERM, seconds: float = 60.0) -> int:
        """Send the signal and return the exit status; fails if the process still exists after `seconds`."""
        process.send_signal(with_signal)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{process.args} still runs {seconds:g} s after {with_signal!r}\n{self.output()}") from None

    def wait_until_gone(self, seconds: float = 60.0) -> None:
        """Wait until no process is left. The kernel ends a process's children shortly after it, so one check is not enough."""
        deadline = time.monotonic() + seconds
        while left := self.alive():
            assert time.monotonic() < deadline, f"these processes are still running: {left}\n{self.output()}"
            time.sleep(0.05)

    def kill_all(self) -> None:
        deadline = time.monotonic() + 60
        while (left := self.alive()) and time.monotonic() < deadline:  # repeated, because a process may have started another
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):  # it has already ended with its parent
                    process.kill()
        for started in self.processes:
            started.wait(60)


def events(response: httpx.Response) -> Iterator[dict[str, str]]:
    """Server-sent events of a streamed response, without comments."""
    event: dict[str, str] = {}
    for line in response.iter_lines():
        if line:
            name, _, value = line.partition(":")
            if name:
                event[name] = event.get(name, "") + value.removeprefix(" ")
        else:
            if "data" in event:  # a block without data is not an event
                yield event
            event = {}
