"""`stablessm backup FOLDER --every 24 --keep 14`: backs up at fixed intervals, verifies each backup and removes the oldest
backups.

The newest file in the folder determines when the next backup is due, so a restart neither skips a backup nor repeats one.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from server.backup.archive import BackupError, verify
from server.backup.create import Say, backup
from server.database.connection import Database

RETRY_SECONDS = 300.0
PATTERN = "stablessm-*.backup"  # the names that `backup` chooses; other files in the folder are never touched


def back_up_regularly(
    database: Database, data_dir: Path, folder: Path, *, every_seconds: float, keep: int, say: Say, stop: threading.Event
) -> None:
    """Back up until `stop` is set. A failed backup is reported and retried within five minutes; no older backup is removed
    after a failure."""
    folder.mkdir(parents=True, exist_ok=True)
    pause = _until_due(folder, every_seconds)
    while not stop.wait(pause):
        try:
            file, manifest = backup(database, data_dir, folder, say)
            verify(file)
        except (BackupError, SQLAlchemyError, OSError, ValueError) as error:
            say(f"the backup failed: {' '.join(str(error).split())[:500]}")
            pause = min(RETRY_SECONDS, every_seconds)
            continue
        say(f"{file}  {file.stat().st_size:,} bytes, verified, SHA-256 of its manifest {manifest.digest}")
        others = [other for other in _backups(folder) if other != file]  # after a clock jump the new file may sort first
        for old in others[: max(0, len(others) + 1 - keep)]:
            old.unlink(missing_ok=True)
            say(f"removed {old}; {keep} newer backups are kept")
        pause = _until_due(folder, every_seconds)


def _backups(folder: Path) -> list[Path]:
    return sorted(folder.glob(PATTERN))  # sorted by time, because the names contain the time


def _until_due(folder: Path, every_seconds: float) -> float:
    made = [file.stat().st_mtime for file in _backups(folder)]
    return min(every_seconds, max(0.0, max(made) + every_seconds - time.time())) if made else 0.0
