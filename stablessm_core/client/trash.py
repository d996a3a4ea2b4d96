"""Deleted runs: into the trash, out of it, for good, and what everything occupies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from stablessm_core.client.connection import Connection


def delete(self: Connection, run_id: int) -> None:
    """Put an ended run into the trash."""
    self.send("DELETE", f"/api/runs/{run_id}")


def undelete(self: Connection, run_id: int) -> dict[str, Any]:
    """Bring a run back from the trash."""
    back: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/restore")
    return back


def delete_for_good(self: Connection, run_id: int) -> None:
    """Delete a run of the trash now."""
    self.send("DELETE", f"/api/trash/{run_id}")


def trash(self: Connection, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """The runs in the trash, the last deleted one first, at most `limit`."""
    return self.pages("/api/trash", "runs", limit)


def occupied(self: Connection) -> dict[str, Any]:
    """How many runs are kept and in the trash, what they occupy, and how many hours a run stays in the trash."""
    found: dict[str, Any] = self.get("/api/trash", limit=1)
    return {name: found[name] for name in ("hours", "kept", "trash")}
