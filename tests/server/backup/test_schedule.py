"""Backups on a schedule: the next one is due by the files that are there, failures remove nothing."""

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


def made_until(database: Database, data_dir: Path, folder: Path, *, every: float, keep: int, seconds: float) -> list[str]:
    """What is said by a schedule that runs for so long."""
    said: list[str] = []
    stop = threading.Event()
    timer = threading.Timer(seconds, stop.set)
    timer.start()
    back_up_regularly(database, data_dir, folder, every_seconds=every, keep=keep, say=said.append, stop=stop)
    timer.join()
    return said


@pytest.mark.slow
def test_each_is_verified_and_only_the_oldest_backups_go(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    folder.mkdir()
    kept, foreign = folder / "by-hand.backup", folder / "notes.txt"
    kept.write_bytes(b"x")
    foreign.write_bytes(b"y")
    said = made_until(sqlite, data_dir, folder, every=1.2, keep=2, seconds=5.0)
    made = sorted(folder.glob("stablessm-*.backup"))
    assert len(made) == 2
    assert all(verify(file).tables for file in made)
    assert sum(" bytes, verified" in line for line in said) > 2
    assert sum(" removed, " in line for line in said) == sum(" bytes, verified" in line for line in said) - 2
    assert kept.exists()
    assert foreign.exists()


def test_a_restart_makes_none_before_it_is_due(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    first = made_until(sqlite, data_dir, tmp_path, every=3600, keep=3, seconds=0.5)
    assert any("verified" in line for line in first)
    assert made_until(sqlite, data_dir, tmp_path, every=3600, keep=3, seconds=0.3) == []
    file = next(tmp_path.glob("stablessm-*.backup"))
    os.utime(file, (time.time() - 3700,) * 2)
    time.sleep(1.0)  # files are named by the second
    assert any("verified" in line for line in made_until(sqlite, data_dir, tmp_path, every=3600, keep=3, seconds=0.5))


def test_one_that_fails_is_said_in_one_line_and_removes_nothing(data_dir: Path, tmp_path: Path) -> None:
    old = tmp_path / "stablessm-20200101-000000.backup"
    old.write_bytes(b"x")
    os.utime(old, (0, 0))
    empty = Database(f"sqlite:///{tmp_path / 'no schema.db'}")
    said = made_until(empty, data_dir, tmp_path, every=3600, keep=1, seconds=0.3)
    empty.close()
    assert [line.splitlines() == [line] and line.startswith("no backup: ") for line in said] == [True]
    assert old.exists()


@pytest.mark.slow
def test_the_command_goes_on_until_it_is_told_to_stop(sqlite: Database, data_dir: Path, tmp_path: Path) -> None:
    folder = tmp_path / "backups"
    command = [sys.executable, "-m", "server", "backup", str(folder), "--every", "24", "--database-url", sqlite.url]
    with subprocess.Popen([*command, "--data-dir", str(data_dir)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "verified" not in (line := process.stderr.readline()):
            assert line, "it ended"
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert len(list(folder.glob("stablessm-*.backup"))) == 1
