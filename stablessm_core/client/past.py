"""A run's past: what it printed, what can be resumed from, what happened to it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from stablessm_core.client.connection import Connection


class Damaged(ValueError):
    """What arrived is not what the server says it sent."""


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


def download_checkpoint(self: Connection, run_id: int, step: int, target: str | Path) -> Path:
    """Write a checkpoint (safetensors) to `target`, whole and checked against its SHA-256, or not at all. Raises Damaged."""
    target, digest = Path(target), hashlib.sha256()
    draft = target.with_name(f".{target.name}.part")
    try:
        with self.streamed("GET", f"/api/runs/{run_id}/checkpoints/{step}") as answer, draft.open("wb") as file:
            for piece in answer.iter_bytes():
                digest.update(piece)
                file.write(piece)
            expected = answer.headers["ETag"].strip('"')
        if digest.hexdigest() != expected:
            raise Damaged(f"checkpoint {step} of run {run_id} arrived with SHA-256 {digest.hexdigest()}, not {expected}")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    return target
