"""The checkpoints of a run, and their files. Paths come only from the database."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import IO, Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.checkpoint_store import CheckpointStore, NotStored
from server.database.models import CheckpointRow
from server.lifecycle.history import hosts_of_attempts
from server.settings import Settings, run_folder
from stablessm_core.verdict.trouble import Trouble

KEPT = 2  # number of checkpoints per run that a worker keeps on its disk and in the checkpoint store


class NotHere(LookupError):
    """Neither this machine nor the checkpoint store has the checkpoint's file."""


class Damaged(ValueError):
    """The file differs from the recorded checkpoint."""


def checkpoints_json(session: Session, run_id: int, settings: Settings, trouble: Trouble | None = None) -> list[dict[str, Any]]:
    """The CheckpointAnswer of each checkpoint from which the run can resume, newest first. trouble: the trouble of the run, if
    it is known."""
    hosts = hosts_of_attempts(session, run_id)
    rows = session.scalars(select(CheckpointRow).where(CheckpointRow.run_id == run_id).order_by(CheckpointRow.step.desc()))
    described = [_checkpoint_json(row, hosts.get(row.attempt), settings, trouble) for row in rows]
    return [one for index, one in enumerate(described) if index < KEPT or one["available"]]  # older files are deleted everywhere


def precedes(step: int, trouble: Trouble) -> bool:
    """True if the state after the steps 1 to `step` is free of the trouble."""
    return step < trouble.step


def open_checkpoint(row: CheckpointRow, settings: Settings) -> IO[bytes]:
    """The checkpoint's file, opened on this machine or in the checkpoint store. Raises NotHere, StoreError."""
    path = _path(row, settings.data_dir)
    if path is not None:
        return path.open("rb")
    if row.stored_at is None or settings.checkpoint_store is None:
        raise NotHere(row.path)
    try:
        return _store(settings.checkpoint_store).open(row.path)
    except NotStored:
        raise NotHere(row.path) from None


def _path(row: CheckpointRow, data_dir: Path) -> Path | None:
    """The checkpoint's file if it is on this machine and inside the run's folder, else None."""
    try:
        path = (data_dir / row.path).resolve(strict=True)
        return path if path.is_relative_to(run_folder(data_dir, row.run_id).resolve(strict=True)) and path.is_file() else None
    except OSError:
        return None


@cache
def _store(url: str) -> CheckpointStore:
    return CheckpointStore(url)


def check_checkpoint(file: IO[bytes], sha256: str) -> int:
    """The size of the file in bytes. The file is rewound. Raises Damaged if the file's SHA-256 differs from `sha256`."""
    digest = hashlib.sha256()
    while piece := file.read(1 << 20):
        digest.update(piece)
    found, size = digest.hexdigest(), file.tell()
    file.seek(0)
    if found != sha256:
        raise Damaged(f"its SHA-256 is {found}, expected {sha256}")
    return size


def _checkpoint_json(row: CheckpointRow, host: str | None, settings: Settings, trouble: Trouble | None) -> dict[str, Any]:
    path = _path(row, settings.data_dir)
    size = row.bytes or (path.stat().st_size if path else None)
    here = path is not None or (row.stored_at is not None and settings.checkpoint_store is not None)
    return {
        "step": row.step,
        "attempt": row.attempt,
        "sha256": row.sha256,
        "size_bytes": size,
        "created_at": row.created_at,
        "host": host,
        "available": here,
        "before_trouble": None if trouble is None else precedes(row.step, trouble),
        "url": f"/api/runs/{row.run_id}/checkpoints/{row.step}" if here else None,
    }
