"""Sweeps: a grid or a search of runs from one base configuration, and the table of their results."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stablessm_core.client.connection import Connection, without_none


class SweepMethods(Connection):
    """Methods of `Client` for sweeps."""

    def submit_sweep(
        self, /, base: Mapping[str, Any], grid: Mapping[str, Sequence[Any]] | None = None, *,
        search: Mapping[str, Any] | None = None, name: str | None = None, key: str | None = None, **placement: Any,
    ) -> dict[str, Any]:  # fmt: skip
        """Queue one run per combination of the grid, or per trial of the search. If the server refuses one of the runs, no run is
        queued.

        search: for example `{"trials": 20, "seed": 0, "space": {"optimizer.lr": {"distribution": "log_uniform", "low": 1e-4,
        "high": 0.1}}, "halving": {"metric": "train/loss", "first_rung": 100}}`. key: an idempotency key; a repeated call with the
        same key returns the first call's sweep. placement: queue, priority, gpu, project.
        """
        axes = None if grid is None else {path: list(values) for path, values in grid.items()}
        body = {"base": dict(base), **without_none(grid=axes, search=search, name=name, **placement)}
        headers = {"Idempotency-Key": key} if key else {}
        made: dict[str, Any] = self.send("POST", "/api/sweeps", body, headers=headers)
        return made

    def sweeps(self, q: str | None = None, *, project: str | None = None, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """At most `limit` sweeps whose name contains `q`, newest first, without the runs of the sweeps. project: only sweeps with
        runs of this project."""
        return self.pages("/api/sweeps", "sweeps", limit, q=q, project=project)

    def sweep(self, sweep_id: int) -> dict[str, Any]:
        """A sweep with all its runs."""
        found: dict[str, Any] = self.get(f"/api/sweeps/{sweep_id}")
        return found

    def update_sweep(self, sweep_id: int, *, name: str | None) -> dict[str, Any]:
        """Rename a sweep. `name=None` restores the name in the sweep's base configuration."""
        changed: dict[str, Any] = self.send("PATCH", f"/api/sweeps/{sweep_id}", {"name": name})
        return changed

    def cancel_sweep(self, sweep_id: int) -> dict[str, Any]:
        """Cancel every queued or running run of the sweep."""
        changed: dict[str, Any] = self.send("POST", f"/api/sweeps/{sweep_id}/cancel")
        return changed

    def sweep_table(self, sweep_id: int, *, group_by: Sequence[str] = (), columns: Sequence[str] = ()) -> dict[str, Any]:
        """The sweep's table: one row per run, or one row per group of runs. `sweep_frame` returns it as a DataFrame."""
        found: dict[str, Any] = self.get(f"/api/sweeps/{sweep_id}/table", **_table_params(group_by, columns))
        return found

    def download_sweep_table(
        self, sweep_id: int, format: str, *, group_by: Sequence[str] = (), columns: Sequence[str] = ()
    ) -> bytes:
        """The sweep's table as a file: csv, parquet, markdown, latex or json."""
        params = without_none(format=format, **_table_params(group_by, columns))
        return self.request("GET", f"/api/sweeps/{sweep_id}/table", params=params).content

    def sweep_grid(self, sweep_id: int, *, rows: str | None = None, columns: str | None = None) -> dict[str, Any]:
        """The results in each cell: finite / total runs, stable / total runs, and the median and quartiles of the final loss.

        By default the rows are maps and the columns are learning rates. Any two paths that the sweep varies can be chosen
        instead.
        """
        found: dict[str, Any] = self.get(f"/api/sweeps/{sweep_id}/grid", rows=rows, columns=columns)
        return found

    def download_sweep_grid(self, sweep_id: int, format: str, *, rows: str | None = None, columns: str | None = None) -> bytes:
        """The sweep's grid as a file with text cells: csv, parquet, markdown, latex or json."""
        return self.request(
            "GET", f"/api/sweeps/{sweep_id}/grid", params=without_none(format=format, rows=rows, columns=columns)
        ).content


def _table_params(group_by: Sequence[str], columns: Sequence[str]) -> dict[str, str | None]:
    return {"group_by": ",".join(group_by) or None, "columns": ",".join(columns) or None}
