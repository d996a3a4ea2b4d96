"""Sweeps: a grid of runs from one base configuration, and the table of what came out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stablessm_core.client.connection import Connection, given


def submit_sweep(
    self: Connection, /, base: Mapping[str, Any], grid: Mapping[str, Sequence[Any]], *, name: str | None = None, **place: Any
) -> dict[str, Any]:
    """Queue one run per combination of the grid, all or none; `place`: queue, priority, gpu."""
    body = {"base": dict(base), "grid": {path: list(values) for path, values in grid.items()}, **given(name=name, **place)}
    made: dict[str, Any] = self.send("POST", "/api/sweeps", body)
    return made


def sweeps(self: Connection, q: str | None = None, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Sweeps in whose name `q` occurs, newest first, without their runs; all pages of them, at most `limit`."""
    return self.pages("/api/sweeps", "sweeps", limit, q=q)


def sweep(self: Connection, sweep_id: int) -> dict[str, Any]:
    """A sweep with all its runs."""
    found: dict[str, Any] = self.get(f"/api/sweeps/{sweep_id}")
    return found


def update_sweep(self: Connection, sweep_id: int, *, name: str | None) -> dict[str, Any]:
    """Name a sweep; None goes back to the name of its base configuration."""
    changed: dict[str, Any] = self.send("PATCH", f"/api/sweeps/{sweep_id}", {"name": name})
    return changed


def cancel_sweep(self: Connection, sweep_id: int) -> dict[str, Any]:
    """Cancel every run of it that waits or trains."""
    changed: dict[str, Any] = self.send("POST", f"/api/sweeps/{sweep_id}/cancel")
    return changed


def sweep_table(self: Connection, sweep_id: int, *, group_by: Sequence[str] = (), columns: Sequence[str] = ()) -> dict[str, Any]:
    """The sweep's table: a row per run, or per group of runs. As a DataFrame: `sweep_frame`."""
    found: dict[str, Any] = self.get(f"/api/sweeps/{sweep_id}/table", **_chosen(group_by, columns))
    return found


def download_sweep_table(
    self: Connection, sweep_id: int, format: str, *, group_by: Sequence[str] = (), columns: Sequence[str] = ()
) -> bytes:
    """The same as a file: csv, parquet, markdown, latex or json."""
    params = given(format=format, **_chosen(group_by, columns))
    return self.request("GET", f"/api/sweeps/{sweep_id}/table", params=params).content


def sweep_grid(self: Connection, sweep_id: int, *, rows: str | None = None, columns: str | None = None) -> dict[str, Any]:
    """What became of the runs of each cell: finite / total, stable / total, median of the final loss with quartiles.

    Maps down and learning rates across, or any two of the paths that the sweep varies.
    """
    found: dict[str, Any] = self.get(f"/api/sweeps/{sweep_id}/grid", rows=rows, columns=columns)
    return found


def download_sweep_grid(
    self: Connection, sweep_id: int, format: str, *, rows: str | None = None, columns: str | None = None
) -> bytes:
    """The same as a file, a text in each cell: csv, parquet, markdown, latex or json."""
    return self.request("GET", f"/api/sweeps/{sweep_id}/grid", params=given(format=format, rows=rows, columns=columns)).content


def _chosen(group_by: Sequence[str], columns: Sequence[str]) -> dict[str, str | None]:
    return {"group_by": ",".join(group_by) or None, "columns": ",".join(columns) or None}
