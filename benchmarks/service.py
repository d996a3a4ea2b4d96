"""Helpers that the benchmarks of the service share: new databases, running servers, HTTP requests, a browser, filled tables."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import platform
import secrets
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import psycopg
from sqlalchemy import insert, make_url, text

from server.database.connection import Database
from server.database.models import AlertRow, BlockRow, Run, SeriesRow, Transition
from server.lifecycle import transitions as lifecycle
from stablessm_core.client import ApiError, Client, find_server
from stablessm_core.client.connection import ConnectionLost
from stablessm_core.spec.config import RunConfig
from stablessm_core.telemetry.series import TRAIN_LOSS, SeriesSpec

POSTGRES = "postgresql+psycopg://127.0.0.1:5432/postgres"
START_SECONDS = 120.0


@dataclass(frozen=True)
class Row:
    """One line of the table that `benchmarks.load` prints. `promised` is "" if no figure is promised."""

    what: str
    measured: str
    promised: str = ""


# ---- databases ----


@contextlib.contextmanager
def database_url(server: str | None, folder: Path) -> Iterator[str]:
    """The URL of a new database: a SQLite file if `server` is None or "sqlite", otherwise a PostgreSQL database on `server`,
    which is dropped afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    if server is None or server.startswith("sqlite"):
        yield f"sqlite:///{folder.resolve() / 'stablessm.db'}"
        return
    name, url = f"stablessm_benchmark_{secrets.token_hex(4)}", make_url(server)
    admin = url.set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        try:
            yield url.set(database=name).render_as_string(hide_password=False)
        finally:
            connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@contextlib.contextmanager
def new_database(server: str | None, folder: Path) -> Iterator[Database]:
    """A new database at the URL of `database_url`, with the current schema."""
    with database_url(server, folder) as url:
        database = Database(url)
        database.migrate()
        try:
            yield database
        finally:
            database.close()


def submit_and_claim(database: Database, config: RunConfig) -> lifecycle.Claim:
    """Submits a new run and claims it. No other run may be queued."""
    with database.write() as session:
        lifecycle.submit(session, config)
    with database.write() as session:
        claim = lifecycle.claim(session, "benchmark", {"devices": ["cpu"], "data": {}})
    assert claim is not None
    return claim


def stored_bytes(database: Database) -> int:
    """The size of the database in bytes, after its write-ahead log is merged into it."""
    if database.path is not None:
        with database.write() as session:
            session.connection().exec_driver_sql("SELECT 1")
        with contextlib.closing(database.engine.raw_connection()) as connection:
            connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return sum(file.stat().st_size for file in database.path.parent.glob(f"{database.path.name}*") if "-shm" not in file.name)
    with database.read() as session:
        return int(session.scalar(text("SELECT pg_database_size(current_database())")) or 0)


def recorded_values(database: Database) -> int:
    """The number of recorded values. The points of the coarser levels are not counted."""
    with database.read() as session:
        return int(session.scalar(text("SELECT sum(point_count * column_count) FROM blocks WHERE level = 0")) or 0)


Rows = dict[Any, list[dict[str, Any]]]  # model -> rows


def fill(database: Database, runs: int, add_run: Callable[[Rows, int], None]) -> None:
    """Insert runs with the ids 1 to `runs` directly into the database, without the service. add_run(rows, run_id) appends the
    rows of one run.
    """
    for start in range(1, runs + 1, 250):
        rows: Rows = {Run: [], SeriesRow: [], BlockRow: [], AlertRow: [], Transition: []}
        for run_id in range(start, min(start + 250, runs + 1)):
            add_run(rows, run_id)
        with database.write() as session:
            for table, some in rows.items():
                if some:
                    session.execute(insert(table.__table__), some)
    if database.dialect == "postgresql":
        with database.engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql(f"SELECT setval(pg_get_serial_sequence('runs', 'id'), {runs})")
            connection.exec_driver_sql("ANALYZE")


def add_recorded_run(
    rows: Rows, run: dict[str, Any], catalogue: Sequence[SeriesSpec], payloads: Sequence[tuple[str, int, bytes]], steps: int
) -> None:
    """Append a run with its series, one raw block per (group, columns, payload), the run's transitions, and an alert if the run
    diverged."""
    run_id, status, at = run["id"], run["status"], run["started_at"]
    rows[Run].append({"attempt": 1, "seq": 3} | run)
    offsets: dict[str, int] = {}
    for item in sorted(catalogue, key=lambda s: s.derived):
        offset = offsets.get(item.group, 0)
        offsets[item.group] = offset + item.width
        rows[SeriesRow].append({"run_id": run_id, "name": item.name, "group_name": item.group, "column_offset": offset,
                                "width": item.width, "unit": item.unit, "derived": item.derived, "form": item.form})  # fmt: skip
    for group, columns, payload in payloads:
        rows[BlockRow].append({"run_id": run_id, "group_name": group, "level": 0, "first_step": 1, "last_step": steps,
                               "stride": 1, "point_count": steps, "column_count": columns, "attempt": 1, "seq": 2,
                               "payload": payload})  # fmt: skip
    rows[Transition] += [{"run_id": run_id, "seq": seq, "status": state, "reason": "", "attempt": 1, "step": 0, "at": at}
                         for seq, state in ((1, "queued"), (3, status))]  # fmt: skip
    if status == "diverged":
        rows[AlertRow].append({"run_id": run_id, "seq": 2, "attempt": 1, "kind": "nonfinite_loss", "severity": "critical",
                               "step": run["step"], "series": TRAIN_LOSS, "tensor": "", "value": "NaN",
                               "message": "the loss is NaN", "created_at": at})  # fmt: skip


# ---- servers and other processes ----


@dataclass
class Serving:
    """A running `stablessm serve`. `environment` lets another process use the same database, folder and token."""

    port: int
    token: str
    process: psutil.Process
    environment: dict[str, str]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def login_url(self) -> str:
        return f"{self.url}/?token={self.token}"

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def rss_mib(self) -> float:
        return float(self.process.memory_info().rss) / 2**20


@contextlib.contextmanager
def serving(database: Database | str, folder: Path, **settings: str) -> Iterator[Serving]:
    """Runs `stablessm serve` on a migrated database, with the server's state in folder/state. settings: values of STABLESSM_
    variables, whose names are given in lower case and without the prefix.
    """
    port, token = free_port(), "benchmark-token-" + secrets.token_hex(16)
    own = {"database_url": database if isinstance(database, str) else database.url, "data_dir": str(folder.resolve() / "state")}
    # a long lease, because the recording processes of the benchmarks send no heartbeats
    own |= {"token": token, "lease_seconds": "600"} | settings
    environment = other_environment() | {f"STABLESSM_{name.upper()}": value for name, value in own.items()}
    with running([sys.executable, "-m", "server", "serve", "--port", str(port)], folder, port, environment) as process:
        yield Serving(port, token, psutil.Process(process.pid), environment)


@contextlib.contextmanager
def running(
    command: list[str], folder: Path, port: int, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Runs a server until it is no longer needed, starting when the server accepts connections on `port`. Then ends the server
    and all its child processes."""
    folder.mkdir(parents=True, exist_ok=True)
    log, deadline = folder / "server.log", time.monotonic() + START_SECONDS
    with log.open("a") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True)
    try:
        while not accepts(port):
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{command[0]} does not serve: {log.read_text()[-500:]}")
            time.sleep(0.1)
        yield server
    finally:
        for sign in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(server.pid, sign)
            with contextlib.suppress(subprocess.TimeoutExpired):
                server.wait(15)
                break


@contextlib.contextmanager
def installation(state: Path, *options: str, **environment: str) -> Iterator[Client]:
    """Starts `stablessm up` and yields a client of this service. Ends the service with SIGTERM afterwards, so that a run that
    is still training saves a checkpoint."""
    state.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "server", "up", "--port", "0", "--data-dir", str(state), *options]
    log, deadline = state / "up.log", time.monotonic() + START_SECONDS
    with log.open("ab") as output:
        up = subprocess.Popen(
            command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=other_environment() | environment,
            start_new_session=True,
        )  # fmt: skip
    try:
        while (client := _client_of(state, up.pid)) is None:
            if up.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"the service does not start:\n{log.read_text()[-2000:]}")
            time.sleep(0.2)
        with client:
            yield client
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(120)


def _client_of(state: Path, pid: int) -> Client | None:
    with contextlib.suppress(OSError, ValueError, KeyError, ApiError, ConnectionLost):
        if json.loads((state / "up.json").read_text())["pid"] == pid:
            client = Client(*find_server(state), timeout=300)
            client.ready()
            return client
    return None


def other_environment() -> dict[str, str]:
    """The environment variables of this process, except those that configure another installation of StableSSM."""
    return {name: value for name, value in os.environ.items() if not name.startswith("STABLESSM_")}


def child(module: str, *arguments: str) -> subprocess.Popen[str]:
    """Starts a module of this package as a process with one thread. The process prints its result as one line of JSON."""
    command = [sys.executable, "-m", module, *arguments]
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | threads)


def accepts(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


# ---- requests ----


class HttpClient:
    """One kept-alive HTTP connection with as little overhead as possible."""

    def __init__(self, port: int, token: str) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        self.headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}

    def get(self, path: str) -> bytes:
        return self._checked(*self._send("GET", path, None))

    def post(self, path: str, body: dict[str, Any]) -> bytes:
        return self._checked(*self._send("POST", path, json.dumps(body)))

    def newest_step(self, path: str) -> int:
        """The last step of a series, or 0 if the series has no steps yet."""
        status, data = self._send("GET", path, None)
        return (json.loads(data).get("step") or [0])[-1] if status == 200 else 0

    @staticmethod
    def _checked(status: int, data: bytes) -> bytes:
        if status >= 400:
            raise RuntimeError(f"{status} {data[:300]!r}")
        return data

    def _send(self, method: str, path: str, body: str | None) -> tuple[int, bytes]:
        try:
            self.connection.request(method, path, body, self.headers)
            response = self.connection.getresponse()
        except (http.client.RemoteDisconnected, BrokenPipeError):  # the server closes idle connections after some seconds
            self.connection.close()
            self.connection.request(method, path, body, self.headers)
            response = self.connection.getresponse()
        return response.status, response.read()


def timed(call: Callable[[], Any], times: int) -> tuple[float, Any]:
    """The median time of `times` calls after a warm-up call, in milliseconds, and the result of the last call."""
    result, spent = call(), []
    for _ in range(times):
        at = time.perf_counter()
        result = call()
        spent.append((time.perf_counter() - at) * 1e3)
    return statistics.median(spent), result


def percentiles(seconds: Sequence[float], digits: int = 0) -> str:
    """A text with the median, the 99th percentile and the maximum, in milliseconds."""
    ms = np.sort(np.asarray(seconds)) * 1e3
    p50, p99 = (np.percentile(ms, q) for q in (50, 99))
    return f"p50 {p50:.{digits}f}, p99 {p99:.{digits}f}, max {ms[-1]:.{digits}f} ms"


# ---- browser and machine ----


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Starts Chromium with Playwright. Chromium is found at CHROMIUM_PATH, on the PATH, or where Playwright has installed
    it."""
    from playwright.sync_api import sync_playwright

    path = os.environ.get("CHROMIUM_PATH") or shutil.which("chromium") or shutil.which("chromium-browser")
    arguments = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"]
    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=path, args=arguments) as started:
        yield started


def machine() -> str:
    """One line with the cores, the Python version and the load average of this machine."""
    return (
        f"{os.cpu_count()} {platform.machine()} cores, Python {platform.python_version()}; load average {os.getloadavg()[0]:.1f}"
    )
