"""Server, database and reporting program are killed in the middle of posts: what was acknowledged is stored, and stored once."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import numpy as np
import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from server.database.connection import Database
from server.database.models import AlertRow, BlockRow, Run, Transition
from server.database.payloads import stored_numbers, stored_pieces
from stablessm_core.telemetry.series import SCALARS
from tests.chaos.services import Missing, Postgres
from tests.installation import Installation, hold_port

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

TOKEN = "token-of-the-tests-0123456789"
STEPS, KILLS = 3000, 12
PROGRAM = Path(__file__).with_name("reporting_program.py")


@contextmanager
def killed(database: Database, folder: Path, kinds: list[str], postgres: Postgres | None) -> Iterator[int]:
    """Run the program to its end while processes are killed, and yield the run's number."""
    rng, name, noted = random.Random(7), str(uuid.uuid4()), folder / "acknowledged"
    held = hold_port()
    port = held.getsockname()[1]
    site = Installation(folder / "state", port, TOKEN, {"STABLESSM_TOKEN": TOKEN, "STABLESSM_RUNS_PER_MINUTE": "0"})

    def serve() -> subprocess.Popen[bytes]:
        arguments = ("--port", str(port), "--data-dir", str(folder / "state"), "--database-url", database.url)
        return site.start("serve", *arguments)

    def program() -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, str(PROGRAM), site.url, TOKEN, name, str(STEPS), str(noted)])

    def acknowledged() -> int:
        return max(map(int, noted.read_text().split()), default=0) if noted.exists() else 0

    server, reporter = serve(), program()
    site.wait("first post", lambda: acknowledged() > 0)
    try:
        for i in range(KILLS):
            seen = acknowledged()
            deadline = time.monotonic() + 120
            while acknowledged() <= seen and reporter.poll() is None:
                assert time.monotonic() < deadline, site.output()
                time.sleep(0.01)
            time.sleep(rng.random() * 0.1)
            kind = kinds[i % len(kinds)]
            if kind == "program":
                reporter.kill()
                reporter.wait()
                check(database, acknowledged())
                reporter = program()
            elif kind == "server":
                server.kill()
                server.wait()
                site.processes.remove(server)
                check(database, acknowledged())
                server = serve()
            elif postgres is not None:
                postgres.kill()
                postgres.start()
                check(database, acknowledged())
        assert reporter.wait(300) == 0
        yield check(database, acknowledged())
    finally:
        reporter.kill()
        server.kill()
        held.close()


def check(database: Database, acknowledged: int) -> int:
    """Everything up to the acknowledged step is stored once, with its own numbers. Returns the run's number."""
    for _ in range(100):
        try:
            with database.read() as session:
                run = session.scalars(select(Run)).one()
                blocks = session.scalars(select(BlockRow).order_by(BlockRow.first_step)).all()
                losses = [block for block in blocks if block.group_name == SCALARS]
                pieces = np.concatenate([stored_pieces(b) for b in blocks]) if blocks else np.empty((0, 2), int)
                numbers = {
                    *map(int, pieces[:, 0]),
                    *session.scalars(select(Transition.seq)),
                    *session.scalars(select(AlertRow.seq)),
                }
                break
        except OperationalError:  # the database has just been started
            time.sleep(0.1)
    values = np.concatenate([stored_numbers(b)[0] for b in losses]) if losses else np.empty(0, np.float32)
    assert values.tolist() == [float(step) for step in range(1, len(values) + 1)]
    assert len(values) >= acknowledged
    assert run.step == len(values)
    assert numbers == set(range(1, run.seq + 1)), "events have no gaps"
    return run.id


def finished(database: Database, run_id: int) -> None:
    with database.read() as session:
        run = session.get_one(Run, run_id)
        assert (run.status, run.status_reason) == ("finished", "every step is reported")
        assert run.step >= STEPS


def test_kills_of_server_and_program_lose_and_double_nothing(sqlite_url: str, tmp_path: Path) -> None:
    database = Database(sqlite_url)
    with killed(database, tmp_path, ["server", "program"], None) as run_id:
        finished(database, run_id)
    database.close()


@pytest.mark.postgres
def test_kills_of_the_database_too_lose_and_double_nothing(tmp_path: Path, unavailable: Callable[[str], NoReturn]) -> None:
    with tempfile.TemporaryDirectory(prefix="stablessm-reporting-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)  # also user postgres reads it
        try:
            postgres = Postgres(Path(folder) / "postgres")
            postgres.start()
        except Missing as missing:
            unavailable(str(missing))
        database = Database(postgres.url)
        try:
            database.migrate()
            with killed(database, tmp_path, ["database", "server", "program"], postgres) as run_id:
                finished(database, run_id)
        finally:
            database.close()
            postgres.kill()
