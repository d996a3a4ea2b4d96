"""The data directory has mode 0700 however it came to exist, `migrate` says what it did, and `ps` shows the processes' names."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner

from server.cli.main import main
from server.database.connection import Database
from server.settings import keep_private

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(folder: Path) -> int:
    return stat.S_IMODE(folder.stat().st_mode)


@contextmanager
def started(folder: Path, *arguments: str) -> Iterator[psutil.Process]:
    """`stablessm` with these arguments on this data directory. It is killed at the end, with its children."""
    environment = os.environ | {"STABLESSM_DATA_DIR": str(folder)}
    program = [sys.executable, "-m", "server", *arguments]
    process = psutil.Popen(program, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        yield process
    finally:
        for each in [*process.children(recursive=True), process]:
            each.kill()
        process.wait()


def until(process: psutil.Process, title: str) -> None:
    deadline = time.monotonic() + 60
    while process.cmdline()[:1] != [title]:
        assert process.is_running(), f"it ended before ps showed {title}"
        assert time.monotonic() < deadline, process.cmdline()
        time.sleep(0.05)


@pytest.mark.parametrize("existing", [True, False])
@pytest.mark.parametrize("name", ["up", "serve", "worker"])
def test_each_command_makes_its_data_directory_private_and_ps_shows_its_name(
    name: str, existing: bool, tmp_path: Path, free_port: int
) -> None:
    folder = tmp_path / "state"
    if existing:
        folder.mkdir(0o777)
    port = ["--port", str(free_port)] if name != "worker" else []
    with started(folder, name, *port) as process:
        until(process, f"stablessm {name}")
        deadline = time.monotonic() + 30
        while not folder.exists() or mode(folder) != 0o700:
            assert time.monotonic() < deadline, oct(mode(folder))
            time.sleep(0.05)


@pytest.mark.parametrize("existing", [True, False])
def test_migrate_makes_the_data_directory_private_and_says_what_it_did(existing: bool, tmp_path: Path) -> None:
    folder = tmp_path / "state"
    if existing:
        folder.mkdir(0o755)

    def migrate(*more: str) -> str:
        done = CliRunner().invoke(main, ["migrate", "--data-dir", str(folder), *more])
        assert done.exit_code == 0, done.output
        return done.output

    newest = migrate()
    assert newest.startswith("Created the schema 00")
    assert newest.rstrip().endswith("stablessm.db, which was empty.")
    assert mode(folder) == 0o700
    revision = newest.split()[3]
    assert migrate() == f"The schema is up to date: {revision}. Nothing was changed.\n"
    assert migrate("--to", "0015", "--lose") == f"Changed the schema from {revision} to 0015.\n"


def test_a_database_elsewhere_does_not_change_the_mode_of_its_folder(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(0o755)
    database = Database(f"sqlite:///{shared}/stablessm.db")
    database.migrate()
    database.close()
    assert mode(shared) == 0o755


def test_a_shared_folder_keeps_its_mode_and_the_reason_is_given(tmp_path: Path) -> None:
    shared = tmp_path / "tmp"
    shared.mkdir()
    shared.chmod(0o1777)
    assert "many users share this folder" in (keep_private(shared) or "")
    assert mode(shared) == 0o1777
    (tmp_path / "file").touch()
    assert "cannot be made private" in (keep_private(tmp_path / "file" / "state") or "")
