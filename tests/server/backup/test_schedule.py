"""Scheduled backups: the existing files determine when the next backup is due, and a failure removes no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from server.backup.archive import verify
from server.backup.schedule import back_up_regularly
from server.database.connection import Database

pytestmark = [pytest.mark.both_engines, pytest.mark.long]


def made_until(
    database: Database, data_dir: Path, folder: Path, *, every: float, keep: int, seconds: float = 120, backups: int = 0
) -> list[str]:
    """The lines that a schedule prints until it has run for `seconds` or has made the given number of backups."""
    said: list[str] = []
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()

    def say(line: str) -> None:
        said.append(line)
        if sum(" bytes, verified" in one for one in said) == backups:
            timer.cancel()
            threading.Timer(0.5, stop.set).start()  # after the schedule has removed the oldest backup

    back_up_regularly(database, data_dir, folder, every_seconds=every, keep=keep, say=say, stop=stop)
    timer.cancel()
    return said


@pytest.mark.slow
def test_scheduled_backups_are_verified_and_only_the_oldest_are_removed(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    kept, foreign = folder / "by-hand.backup", folder / "notes.txt"
    kept.write_bytes(b"x")
    foreign.write_bytes(b"y")
    said = made_until(sqlite, data_dir, folder, every=1.2, keep=2, backups=4)
    made = sorted(folder.glob("stablessm-*.backup"))
    assert len(made) == 2
    assert all(verify(file).tables for file in made)
    assert sum(line.startswith("removed ") for line in said) == 2
    assert kept.exists()
    assert foreign.exists()


def test_a_restart_makes_no_backup_before_the_next_one_is_due(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    first = made_until(sqlite, data_dir, tmp_path, every=3600, keep=3, seconds=0.5)
    assert any("verified" in line for line in first)
    assert made_until(sqlite, data_dir, tmp_path, every=3600, keep=3, seconds=0.3) == []
    file = next(tmp_path.glob("stablessm-*.backup"))
    os.utime(file, (time.time() - 3700,) * 2)
    time.sleep(1.0)  # file names contain the time in whole seconds
    assert any("verified" in line for line in made_until(sqlite, data_dir, tmp_path, every=3600, keep=3, seconds=0.5))


def test_a_failed_backup_is_reported_in_one_line_and_removes_no_file(data_dir: Path, tmp_path: Path) -> None:
    old = tmp_path / "stablessm-20200101-000000.backup"
    old.write_bytes(b"x")
    os.utime(old, (0, 0))
    empty = Database(f"sqlite:///{tmp_path / 'no schema.db'}")
    said = made_until(empty, data_dir, tmp_path, every=3600, keep=1, seconds=0.3)
    empty.close()
    assert [line.splitlines() == [line] and line.startswith("the backup failed: ") for line in said] == [True]
    assert old.exists()


@pytest.mark.slow
def test_the_scheduled_backup_command_runs_until_it_is_terminated(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    command = [sys.executable, "-m", "server", "backup", str(folder), "--every", "24", "--database-url", sqlite.url]
    with subprocess.Popen([*command, "--data-dir", str(data_dir)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "verified" not in (line := process.stderr.readline()):
            assert line, "the process ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert len(list(folder.glob("stablessm-*.backup"))) == 1
