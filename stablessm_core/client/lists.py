"""What the list of runs offers besides the runs: saved views, fields to filter by, small curves, one thing done to many runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from stablessm_core.client.connection import Connection


def bulk(self: Connection, action: str, run_ids: Sequence[int]) -> dict[str, Any]:
    """`cancel`, `clone`, `hide`, `show`, `delete` or `restore` for each of the runs: {done, made, refused}."""
    answer: dict[str, Any] = self.send("POST", f"/api/bulk/{action}", {"runs": list(run_ids)})
    return answer


def fields(self: Connection) -> list[dict[str, Any]]:
    """The fields that runs are filtered and sorted by."""
    found: list[dict[str, Any]] = self.get("/api/fields")["fields"]
    return found


def sparks(self: Connection, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
    """Training losses of the runs in a few points each."""
    found = self.get("/api/sparks", runs=",".join(map(str, run_ids)))["sparks"]
    return {int(run): spark for run, spark in found.items()}


def views(self: Connection) -> list[dict[str, Any]]:
    """Your saved views of the list of runs."""
    found: list[dict[str, Any]] = self.get("/api/views")["views"]
    return found


def save_view(self: Connection, name: str, query: str) -> dict[str, Any]:
    """Save the list's query string under a name; the same name again replaces it."""
    made: dict[str, Any] = self.send("POST", "/api/views", {"name": name, "query": query})
    return made


def delete_view(self: Connection, view_id: int) -> None:
    self.send("DELETE", f"/api/views/{view_id}")
