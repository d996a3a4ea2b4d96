"""Requests about many runs at once: comparisons, bulk actions, saved views of the list of runs, and archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stablessm_core.client.connection import Connection, join_numbers, without_none

ARCHIVE_TIMEOUT = 3600.0  # in seconds; the server reads or writes the whole archive before it responds


class ManyRunsMethods(Connection):
    """Methods of `Client` that handle several runs at once."""

    def compare(
        self,
        runs: Sequence[int] | None = None,
        *,
        sweep: int | None = None,
        q: str | None = None,
        group_by: str | None = None,
        against: str | None = None,
    ) -> dict[str, Any]:
        """Differences, curves and ranges of several runs, and a ranking of the groups of runs.

        The ranking includes the ratios finite / total and stable / total of each group. The response also compares each group
        with the group `against`, in pairs of matching runs. By default, `against` is the best group.
        """
        compared: dict[str, Any] = self.get(
            "/api/compare", runs=join_numbers(runs), sweep=sweep, q=q, group_by=group_by, against=against
        )
        return compared

    def claims(
        self, runs: Sequence[int] | None = None, *, sweep: int | None = None, q: str | None = None, group_by: str | None = None,
        against: str | None = None, format: str = "json",
    ) -> bytes:  # fmt: skip
        """Which group of runs does better, judged by exact tests paired by seed: json, csv, parquet, markdown or latex.

        group_by: dotted paths or short names separated by commas, by default layers or maps. against: label of the group that is
        compared with the others, by default the best.
        """
        params = without_none(
            runs=join_numbers(runs), sweep=sweep, q=q, group_by=group_by, against=against, format=format
        )  # fmt: skip
        return self.request("GET", "/api/compare/claims", params=params).content

    def compare_curves(
        self,
        series: str = "train/loss",
        runs: Sequence[int] | None = None,
        *,
        sweep: int | None = None,
        q: str | None = None,
        points: int | None = None,
    ) -> dict[str, Any]:
        """One curve per run. series: "train/loss" or "max_grad_over_weight".

        For max_grad_over_weight, the response also contains the ranges by run and by map.
        """
        found: dict[str, Any] = self.get(
            "/api/compare/curves", series=series, runs=join_numbers(runs), sweep=sweep, q=q, points=points
        )
        return found

    def paper_table(
        self, runs: Sequence[int] | None = None, *, sweep: int | None = None, q: str | None = None, format: str = "json",
        metric: Sequence[str] = ("train_loss",), rows: Sequence[str] | None = None, across: str | None = None,
        statistic: str = "median", digits: int = 3,
    ) -> bytes:  # fmt: skip
        """A table for a paper as a file: json, csv, parquet, markdown or latex. Each cell has the number of finite runs.

        metric: such as "train_loss", "eval_accuracy" or "best_eval_loss". rows: the settings of the rows, by default layers or
        maps; ["none"] gives one row. across: a setting whose values become columns. statistic: "median" (with quartiles) or
        "mean" (with standard deviation). digits: significant digits in markdown and latex.
        """
        params = without_none(
            runs=join_numbers(runs), sweep=sweep, q=q, metric=",".join(metric), rows=None if rows is None else ",".join(rows),
            across=across, statistic=statistic, digits=digits, format=format,
        )  # fmt: skip
        return self.request("GET", "/api/compare/table", params=params).content

    def bulk(self, action: str, run_ids: Sequence[int]) -> dict[str, Any]:
        """Apply `cancel`, `clone`, `hide`, `show`, `delete` or `restore` to each run. Returns {done, made, refused}."""
        answer: dict[str, Any] = self.send("POST", f"/api/bulk/{action}", {"runs": list(run_ids)})
        return answer

    def fields(self) -> list[dict[str, Any]]:
        """The fields by which runs can be filtered and sorted."""
        found: list[dict[str, Any]] = self.get("/api/fields")["fields"]
        return found

    def sparks(self, run_ids: Sequence[int]) -> dict[int, dict[str, Any]]:
        """The training loss of each run, reduced to a few points, by run id."""
        found = self.get("/api/sparks", runs=join_numbers(run_ids))["sparks"]
        return {int(run): spark for run, spark in found.items()}

    def views(self) -> list[dict[str, Any]]:
        """Your saved views of the list of runs."""
        found: list[dict[str, Any]] = self.get("/api/views")["views"]
        return found

    def save_view(self, name: str, query: str) -> dict[str, Any]:
        """Save a query string for the list of runs under a name. An existing view with this name is replaced."""
        made: dict[str, Any] = self.send("POST", "/api/views", {"name": name, "query": query})
        return made

    def delete_view(self, view_id: int) -> None:
        self.send("DELETE", f"/api/views/{view_id}")

    def export_archive(
        self, path: Path, run_ids: Sequence[int] | None = None, *, sweep: int | None = None, q: str | None = None
    ) -> Path:
        """Write ended runs, selected by id, sweep or filter, to the file `path`, which appears only once it is complete."""
        chosen = without_none(runs=join_numbers(run_ids), sweep=sweep, q=q)
        return self._save("/api/exports", path, params=chosen, timeout=ARCHIVE_TIMEOUT)

    def import_archive(self, archive: Path) -> dict[str, Any]:
        """Import the runs of an archive. Returns `source`, `runs` ({id, url, was}) and `sweeps`. Needs the scope `admin`."""
        headers = {"Content-Type": "application/x-tar"}
        with archive.open("rb") as content:
            imported: dict[str, Any] = self.send(
                "POST", "/api/imports", content=content, headers=headers, timeout=ARCHIVE_TIMEOUT
            )
        return imported
