"""`stablessm backup FOLDER --every 24 --keep 14`: backups at fixed intervals, each verified, the oldest removed.

When the next is due follows from the newest file in the folder, so that a restart neither skips one nor makes one too many.
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
PATTERN = "stablessm-*.backup"  # the names that `backup` gives; no other file of the folder is touched


def back_up_regularly(
    database: Database, data_dir: Path, folder: Path, *, every_seconds: float, keep: int, say: Say, stop: threading.Event
) -> None:
    """Until `stop` is set. One that fails is said, tried again within five minutes, and removes nothing."""
    folder.mkdir(parents=True, exist_ok=True)
    pause = _until_due(folder, every_seconds)
    while not stop.wait(pause):
        try:
            file, manifest = backup(database, data_dir, folder, say)
            verify(file)
        except (BackupError, SQLAlchemyError, OSError, ValueError) as error:
            say(f"no backup: {' '.join(str(error).split())[:500]}")
            pause = min(RETRY_SECONDS, every_seconds)
            continue
        say(f"{file}  {file.stat().st_size:,} bytes, verified, SHA-256 of its manifest {manifest.digest}")
        for old in _backups(folder)[:-keep]:
            old.unlink(missing_ok=True)
            say(f"{old} removed, {keep} newer ones are kept")
        pause = _until_due(folder, every_seconds)


def _backups(folder: Path) -> list[Path]:
    return sorted(folder.glob(PATTERN))  # their names are times


def _until_due(folder: Path, every_seconds: float) -> float:
    made = [file.stat().st_mtime for file in _backups(folder)]
    return min(every_seconds, max(0.0, max(made) + every_seconds - time.time())) if made else 0.0
