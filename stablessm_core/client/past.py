"""A run's past: what it printed, what can be resumed from, what happened to it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

from stablessm_core.client.connection import Connection


def log(self: Connection, run_id: int, *, after: int = 0) -> dict[str, Any]:
    """What its training processes printed: `pieces`, `tracebacks`; `after` (`next` of an answer): only what came since."""
    found: dict[str, Any] = self.get(f"/api/runs/{run_id}/log", after=after)
    return found


def history(self: Connection, run_id: int, *, since: int = 0) -> dict[str, Any]:
    """`events`: every change of its status with the reason, after the event `since`; `attempts`: each with host and end."""
    found: dict[str, Any] = self.get(f"/api/runs/{run_id}/history", since=since)
    return found


def checkpoints(self: Connection, run_id: int) -> list[dict[str, Any]]:
    """Checkpoints it can go on from, newest first; `available` says whether the server can send the file."""
    found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/checkpoints")["checkpoints"]
    return found


def download_checkpoint(self: Connection, run_id: int, step: int, path: Path) -> Path:
    """Write the checkpoint's file to `path`, which appears whole or not at all. Raises ValueError if it came damaged."""
    draft, digest = path.with_name(f".{path.name}.{os.getpid()}.partial"), hashlib.sha256()
    try:
        with self.streamed("GET", f"/api/runs/{run_id}/checkpoints/{step}") as answer, draft.open("wb") as file:
            for piece in answer.iter_bytes():
                digest.update(piece)
                file.write(piece)
        if answer.headers["ETag"].strip('"') != digest.hexdigest():
            raise ValueError(f"the checkpoint of step {step} was damaged on its way: its SHA-256 is {digest.hexdigest()}")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path
