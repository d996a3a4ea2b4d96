"""A PostgreSQL and a Redis that tests may kill. They use free ports and their own folder, and are durable as in production."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import psycopg
import redis

from tests.installation import hold_port

START_SECONDS = 120.0


class Missing(RuntimeError):
    """A program that the suite needs is not installed or cannot be used here."""


def until(what: str, ask: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not ask():
        if time.monotonic() > deadline:
            raise TimeoutError(f"no {what} within {seconds:g} s")
        time.sleep(0.05)


class Postgres:
    """A PostgreSQL. Under root it runs as user postgres, because it refuses to run as root. `url` bypasses every proxy."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._held = folder, hold_port()
        self.port = self._held.getsockname()[1]
        self.url = f"postgresql+psycopg://stablessm@127.0.0.1:{self.port}/postgres"
        found = shutil.which("pg_ctl") or next(iter(sorted(glob.glob("/usr/lib/postgresql/*/bin/pg_ctl"), reverse=True)), None)
        if found is None:
            raise Missing("no pg_ctl: PostgreSQL is not installed")
        self._bin = Path(os.path.realpath(found)).parent
        folder.mkdir(parents=True)
        if os.getuid() == 0:
            if shutil.which("runuser") is None:
                raise Missing("no runuser: PostgreSQL cannot be started as root")
            shutil.chown(folder, "postgres", "postgres")
        self._run("initdb", "-D", str(folder / "data"), "-U", "stablessm", "-A", "trust", "-E", "UTF8", "--no-sync")
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return  # two faults may end at once
        options = ["-p", str(self.port), "-c", "listen_addresses=127.0.0.1", "-c", f"unix_socket_directories={self.folder}"]
        command = self._as([str(self._bin / "postgres"), "-D", str(self.folder / "data"), *options])

        def started() -> bool:
            if self._process is None or self._process.poll() is not None:
                # PostgreSQL refuses to start while a process of the killed server still holds the shared memory
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", start_new_session=True)
            return self.answers()

        until("PostgreSQL", started)

    def answers(self) -> bool:
        try:
            with psycopg.connect(f"host=127.0.0.1 port={self.port} user=stablessm dbname=postgres", connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False

    def kill(self) -> None:
        """Kill every process of the server with kill -9, as a power cut would."""
        if self._process is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess):
            processes = psutil.Process(self._process.pid).children(recursive=True)
            for process in [psutil.Process(self._process.pid), *processes]:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            psutil.wait_procs(processes, 10)
        self._process.wait()
        self._process = None

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(self._as([str(self._bin / program), *arguments]), cwd="/", capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"{program} failed: {done.stderr.strip()[-500:]}")

    def _as(self, command: list[str]) -> list[str]:
        return ["runuser", "-u", "postgres", "--", *command] if os.getuid() == 0 else command


class Redis:
    """A Redis with an append-only file: queued messages survive `kill` and `start`, but not `kill(forget=True)`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._held = folder, hold_port()
        self.port = self._held.getsockname()[1]
        if shutil.which("redis-server") is None:
            raise Missing("no redis-server on the PATH")
        self.folder.mkdir(parents=True)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        if self._process is not None and self._process.poll() is None:
            return  # two faults may end at once
        options = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--save",
            "",
            "--appendonly",
            "yes",
            "--dir",
            str(self.folder),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(["redis-server", *options], stdout=log, stderr=log)
        until("Redis", self.answers)

    def answers(self) -> bool:
        with redis.Redis(port=self.port, socket_connect_timeout=1, socket_timeout=1) as client:
            try:
                return bool(client.ping())
            except redis.RedisError:
                return False

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. After SIGSTOP the kernel still accepts connections and bytes, but Redis is silent until SIGCONT."""
        if self._process is not None:
            self._process.send_signal(number)

    def kill(self, *, forget: bool = False) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._process = None
        if forget:
            shutil.rmtree(self.folder / "appendonlydir", ignore_errors=True)
