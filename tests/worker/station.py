"""A real worker process with a real database, and the helpers that tests need."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import psycopg
from sqlalchemy import select

from server.database.connection import Database
from server.database.models import AlertRow, Run, Transition
from server.lifecycle import transitions as lifecycle
from server.lifecycle.logs import read_log, read_tracebacks
from server.lifecycle.worker_wakeups import wake_workers
from server.series.reading import read_series
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.series import TRAIN_LOSS
from stablessm_core.telemetry.statuses import FINAL

T = TypeVar("T")

START_SECONDS = 120.0  # includes importing torch on a busy machine
MEMORY_BYTES = 12 << 30  # limit on the address space of each process; a run that needs more is out of memory
STEPS = 150
SMALL: dict[str, Any] = {  # about 10 ms per step, slow enough that a test can interrupt the run
    "task": {"name": "polynomial_memory", "length": 200},
    "model": {"d_model": 16, "d_state": 8},
    "train": {"steps": STEPS, "batch_size": 64, "eval_every": 0, "checkpoint_every": 30},
}
# Loops over time in Python: a step takes ten seconds on a fast machine, minutes on a busy machine.
LONG_STEP: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 50_000},
    "model": {"n_layers": 8, "d_model": 8, "d_state": 8},
    "train": {"steps": 100, "batch_size": 2, "eval_every": 0, "scan_backend": "reference"},
    "alerts": {"no_progress_seconds": 1.0},
}
TOO_LARGE: dict[str, Any] = {  # within the limits of the configuration, but too large for this machine's memory
    "task": {"name": "polynomial_memory", "length": 1000},
    "model": {"d_model": 8192, "d_state": 8, "mlp_expansion": 0},
    "train": {"steps": 10, "batch_size": 1000, "eval_every": 0},
}


class TooLate(AssertionError):
    """Raised if the run ended before the test could disturb it, because this process was paused."""


def in_time(scenario: Callable[[], T], tries: int = 5) -> T:
    """The result of `scenario`. If it was too late for its run, it is tried again, because any run may end too early."""
    for _ in range(tries - 1):
        try:
            return scenario()
        except TooLate as missed:
            print(f"once more: {missed}")
    return scenario()


@dataclass
class Station:
    """The worker of one installation. `start` may be called again after the process has ended."""

    database: Database
    data_dir: Path
    broker_url: str | None = None
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def log(self) -> Path:
        return self.data_dir / "worker.log"

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        self.data_dir.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "worker", "--database-url", self.database.url, "--data-dir", str(self.data_dir)]
        command += ["--broker-url", self.broker_url] if self.broker_url else []
        with self.log.open("ab") as log:
            process = subprocess.Popen(
                [*command, *arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                cwd=self.data_dir,
                preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES)),
            )
        self.processes.append(process)
        return process

    @property
    def process(self) -> subprocess.Popen[bytes]:
        return self.processes[-1]

    def children(self) -> list[psutil.Process]:
        """Training processes of the worker, including warm ones."""
        found = []
        for child in psutil.Process(self.process.pid).children():
            try:
                if "worker.trainer" in child.cmdline():
                    found.append(child)
            except psutil.NoSuchProcess:
                continue  # psutil raises this for a zombie as well
        return found

    def idle(self) -> list[psutil.Process]:
        """Training processes without a run, which write no run log."""
        return [child for child in self.children() if not _log_of(child).endswith("log.txt")]

    def trainer_of(self, run_id: int) -> psutil.Process:
        """The training process that writes the run's log. Raises TooLate if the run has ended."""
        log = str(self.data_dir / "runs" / str(run_id) / "log.txt")

        def found() -> psutil.Process | None:
            self._not_ended(run_id)
            return next((child for child in self.children() if _log_of(child) == log), None)

        return self.until(f"training process of run {run_id}", found)

    def hit_trainer(self, run_id: int, number: signal.Signals) -> None:
        """Send a signal to the training process of a run. Raises TooLate if the run has ended."""
        try:
            self.trainer_of(run_id).send_signal(number)
        except psutil.NoSuchProcess as gone:
            raise TooLate(f"the trainer of run {run_id} has ended") from gone

    def submit(self, config: dict[str, Any]) -> int:
        with self.database.write() as session:
            run_id = lifecycle.submit(session, parse_config(config)).id
        wake_workers(self.broker_url)
        return run_id

    def cancel(self, run_id: int) -> None:
        with self.database.write() as session:
            lifecycle.request_cancel(session, run_id)

    def run(self, run_id: int) -> Run:
        with self.database.read() as session:
            return session.get_one(Run, run_id)

    def until(self, what: str, ask: Callable[[], T | None], seconds: float = START_SECONDS) -> T:
        """Call `ask` until its result is neither None nor False, and return the result. Fails with the worker's log."""
        deadline = time.monotonic() + seconds
        while (answer := ask()) is None or answer is False:
            assert time.monotonic() < deadline, f"no {what} within {seconds:g} s\n{self.log.read_text(errors='replace')}"
            time.sleep(0.02)
        return answer

    def until_status(self, run_id: int, *statuses: str, seconds: float = START_SECONDS) -> Run:
        def reached() -> Run | None:
            run = self.run(run_id)
            return run if run.status in statuses else None

        return self.until(f"run {run_id} {' or '.join(statuses)}", reached, seconds)

    def until_ended(self, run_id: int, seconds: float = START_SECONDS) -> Run:
        return self.until_status(run_id, *FINAL, seconds=seconds)

    def _not_ended(self, run_id: int) -> Run:
        run = self.run(run_id)
        if run.status in FINAL:
            raise TooLate(f"run {run_id} is {run.status} already: {run.status_reason}")
        return run

    def until_step(self, run_id: int, step: int, attempt: int = 1) -> None:
        """Wait until the run has reached this step in this attempt. Raises TooLate as soon as the run has ended."""

        def there() -> bool:
            run = self._not_ended(run_id)
            return run.attempt >= attempt and run.status == "running" and run.step >= step

        self.until(f"step {step} of run {run_id}", there)

    def losses(self, run_id: int) -> tuple[list[int], bytes]:
        """(recorded steps, bits of the values) of the training loss."""
        with self.database.read() as session:
            data = read_series(session, run_id, TRAIN_LOSS, max_points=1_000_000)
        assert data.value is not None
        return data.step.tolist(), np.ascontiguousarray(data.value, np.float32).tobytes()

    def reasons(self, run_id: int) -> list[str]:
        with self.database.read() as session:
            rows = select(Transition.reason).where(Transition.run_id == run_id).order_by(Transition.seq)
            return list(session.scalars(rows))

    def alerts(self, run_id: int) -> list[str]:
        with self.database.read() as session:
            return list(session.scalars(select(AlertRow.kind).where(AlertRow.run_id == run_id)))

    def run_log(self, run_id: int) -> list[tuple[int, str]]:
        """(attempt, text) of each piece of the run's log in the database."""
        with self.database.read() as session:
            return [(piece.attempt, piece.text) for piece in read_log(session, run_id)]

    def tracebacks(self, run_id: int) -> dict[int, str]:
        with self.database.read() as session:
            return {row.attempt: row.text for row in read_tracebacks(session, run_id)}

    def stop(self) -> tuple[int, float]:
        """Send SIGTERM. Returns exit code and seconds until the end; fails if a training process outlives the worker."""
        children = self.children()
        begun = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(START_SECONDS)
        took = time.monotonic() - begun
        _gone, alive = psutil.wait_procs(children, 60)
        assert not alive, alive
        return code, took

    def close(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        self.database.close()


@contextmanager
def away(database: Database) -> Iterator[None]:
    """Make the database unreachable: PostgreSQL refuses and ends connections, and SQLite's file cannot be opened."""
    if database.path is None:
        name = database.engine.url.database
        admin = database.engine.url.set(drivername="postgresql", database="postgres").render_as_string(hide_password=False)
        with psycopg.connect(admin, autocommit=True) as connection:
            connection.execute(f'ALTER DATABASE "{name}" ALLOW_CONNECTIONS false')
            _rename_once_unused(connection, name, f"{name}_away")
            try:
                yield
            finally:
                connection.execute(f'ALTER DATABASE "{name}_away" ALLOW_CONNECTIONS true')
                _rename_once_unused(connection, f"{name}_away", name)
    else:
        # One rename in each direction: if the path were missing for a moment, a writer would create an empty database there.
        hidden, nowhere = database.path.with_suffix(".hidden"), database.path.with_suffix(".nowhere")
        database.close()
        os.link(database.path, hidden)
        nowhere.symlink_to(database.path.parent / "missing" / "folder")  # leads to "unable to open database file"
        nowhere.replace(database.path)
        try:
            yield
        finally:
            hidden.replace(database.path)


def _rename_once_unused(connection: psycopg.Connection, name: str | None, other: str) -> None:
    """Rename a database once it has no connections. Ending the connections once is not enough: a connection that is just being
    opened, or that has not yet received the end, would continue to work.
    """
    deadline = time.monotonic() + 90
    while True:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", (name,))
        try:
            connection.execute(f'ALTER DATABASE "{name}" RENAME TO "{other}"')
            return
        except psycopg.errors.ObjectInUse:
            assert time.monotonic() < deadline, f"{name} is still in use"


def _log_of(process: psutil.Process) -> str:
    try:
        return os.readlink(f"/proc/{process.pid}/fd/2")
    except OSError:
        return ""
