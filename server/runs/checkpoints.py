"""A run's checkpoints: which there are, and the way to the file of one. Nobody names a path but the database."""

from __future__ import annotations

import hashlib
from io import BufferedReader
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.models import CheckpointRow
from server.runs.history import hosts_of_attempts
from server.settings import run_folder


class NotHere(LookupError):
    """This machine does not have the checkpoint's file."""


class Damaged(ValueError):
    """The file is not the one that was recorded."""


def run_checkpoints(session: Session, run_id: int, data_dir: Path) -> list[dict[str, Any]]:
    """CheckpointAnswer of each checkpoint that the run can go on from, the newest first."""
    hosts = hosts_of_attempts(session, run_id)
    rows = session.scalars(select(CheckpointRow).where(CheckpointRow.run_id == run_id).order_by(CheckpointRow.step.desc()))
    return [_described(row, hosts.get(row.attempt), data_dir) for row in rows]


def open_checkpoint(row: CheckpointRow, data_dir: Path) -> BufferedReader:
    """The checkpoint's file, open for reading. Raises NotHere."""
    folder = run_folder(data_dir, row.run_id)
    try:
        path = (data_dir / row.path).resolve(strict=True)
        if not path.is_relative_to(folder.resolve(strict=True)) or not path.is_file():
            raise NotHere(row.path)
        return path.open("rb")
    except OSError:
        raise NotHere(row.path) from None


def check_checkpoint(file: BufferedReader, sha256: str) -> int:
    """Size of the file in bytes; afterwards it is read from its beginning. Raises Damaged unless it is what was recorded."""
    found = hashlib.file_digest(file, "sha256").hexdigest()
    size = file.tell()
    file.seek(0)
    if found != sha256:
        raise Damaged(f"its SHA-256 is {found}, recorded is {sha256}")
    return size


def _described(row: CheckpointRow, host: str | None, data_dir: Path) -> dict[str, Any]:
    size = row.bytes or None
    try:
        with open_checkpoint(row, data_dir) as file:
            size, here = file.seek(0, 2), True
    except NotHere:
        here = False
    return {
        "step": row.step,
        "attempt": row.attempt,
        "sha256": row.sha256,
        "size_bytes": size,
        "created_at": row.created_at,
        "host": host,
        "available": here,
        "url": f"/api/runs/{row.run_id}/checkpoints/{row.step}" if here else None,
    }
