"""Whole runs as one file, and such files into a server."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stablessm_core.client.connection import Connection, given

TIMEOUT = 3600.0  # seconds: the server reads or writes all of it before it answers


def export_archive(
    self: Connection, path: Path, run_ids: Sequence[int] | None = None, *, sweep: int | None = None, q: str | None = None
) -> Path:  # fmt: skip
    """Write runs that have ended, those of a sweep or of a filter to `path`, which appears whole or not at all."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.partial")
    chosen = given(runs=",".join(map(str, run_ids)) if run_ids is not None else None, sweep=sweep, q=q)
    try:
        with self.streamed("GET", "/api/exports", params=chosen, timeout=TIMEOUT) as answer, draft.open("wb") as file:
            for piece in answer.iter_bytes():
                file.write(piece)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
    return path


def import_archive(self: Connection, archive: Path) -> dict[str, Any]:
    """Take an archive's runs into this server: `source`, `runs` ({id, url, was}), `sweeps`. Needs the scope admin."""
    with archive.open("rb") as content:
        headers = {"Content-Type": "application/x-tar"}
        taken: dict[str, Any] = self.send("POST", "/api/imports", content=content, headers=headers, timeout=TIMEOUT)
    return taken
