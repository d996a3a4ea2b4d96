"""What every part of `benchmarks.load` uses: a new database, a running server with its CPU and memory, rows of the table."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from benchmarks.workload import POSTGRES as POSTGRES
from benchmarks.workload import free_port, own_database, server_command
from server.database.connection import Database


@dataclass(frozen=True)
class Row:
    """One line of the table. `promised` is "" where nothing is."""

    what: str
    measured: str
    promised: str = ""


@contextlib.contextmanager
def new_database(url: str, folder: Path) -> Iterator[Database]:
    """A new migrated database beside `url`."""
    folder.mkdir(parents=True, exist_ok=True)
    with own_database(url, folder) as own:
        database = Database(own)
        database.migrate()
        try:
            yield database
        finally:
            database.close()


@dataclass
class Serving:
    """A running `stablessm serve`: its port, token and process."""

    port: int
    token: str
    process: psutil.Process

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> float:
        return float(self.process.memory_info().rss) / 2**20


@contextlib.contextmanager
def serving(database: Database, folder: Path) -> Iterator[Serving]:
    """`stablessm serve` on this database, ended afterwards."""
    port = free_port()
    with (folder / "server.log").open("a") as log:
        # what records here has no heartbeat
        environment = os.environ | {"STABLESSM_LEASE_SECONDS": "600"}
        server = subprocess.Popen(server_command(folder, database.url, port), stdout=log, stderr=log, env=environment)
    try:
        token = folder / "token"
        deadline = time.monotonic() + 60
        while not (token.exists() and answers(port)):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {(folder / 'server.log').read_text()[-500:]}")
            time.sleep(0.1)
        yield Serving(port, token.read_text().strip(), psutil.Process(server.pid))
    finally:
        server.terminate()
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            server.kill()


def answers(port: int) -> bool:
    import socket

    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def child(module: str, *arguments: str) -> subprocess.Popen[str]:
    """A process of this package that prints its result as one line of JSON."""
    command = [sys.executable, "-m", module, *arguments]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | threads)


def percentiles(seconds: Sequence[float], digits: int = 0) -> str:
    """Median, 99th percentile and maximum in milliseconds."""
    ms = np.sort(np.asarray(seconds)) * 1e3
    p50, p99 = (np.percentile(ms, q) for q in (50, 99))
    return f"p50 {p50:.{digits}f}, p99 {p99:.{digits}f}, max {ms[-1]:.{digits}f} ms"
