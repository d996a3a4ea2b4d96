"""Reads runs, a sweep or series into a pandas DataFrame. Requires pandas: `pip install 'stablessm-service[frames]'`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from stablessm_core.client.runs import RunMethods
from stablessm_core.client.series import SeriesMethods
from stablessm_core.client.sweeps import SweepMethods
from stablessm_core.telemetry.nonfinite import NONFINITE

SECTIONS = {"config": "", "result": "result.", "divergence": "divergence."}  # section of a run -> prefix of its columns


class PandasMissing(ImportError):
    """A DataFrame needs pandas, which is not installed."""


class FrameMethods(RunMethods, SweepMethods, SeriesMethods):
    """Methods of `Client` that return pandas DataFrames."""

    def runs_frame(
        self, q: str | None = None, *, status: str | None = None, tag: str | None = None, sort: str | None = None,
        limit: int | None = None,
    ) -> Any:  # fmt: skip
        """One row per matching run, indexed by run id. Column names are dotted paths: `optimizer.lr`, `result.train_loss`, …"""
        pandas = _pandas()
        rows = [dict(_run_columns(run)) for run in self.runs(q, status=status, tag=tag, sort=sort, limit=limit)]
        frame = pandas.DataFrame(rows)
        return frame.set_index("id") if rows else frame

    def sweep_frame(self, sweep_id: int, *, group_by: Sequence[str] = (), columns: Sequence[str] = ()) -> Any:
        """The sweep's table: one row per run, indexed by run id, or one row per group of runs. Missing numbers are NaN."""
        pandas = _pandas()
        table = self.sweep_table(sweep_id, group_by=group_by, columns=columns)
        frame = pandas.DataFrame(
            {c["name"]: _column(pandas, c["kind"], [r[c["name"]] for r in table["rows"]]) for c in table["columns"]}
        )
        frame.attrs |= {name: table[name] for name in ("sweep_id", "name", "finite", "total")}
        return frame.set_index("run") if "run" in frame else frame

    def series_frame(self, run_id: int, names: Sequence[str], *, from_step: int | None = None, to_step: int | None = None) -> Any:
        """All recorded points of the series, one row per step. A vector series has one column per eigenvalue, e.g. `name[7]`.

        If a series has no point at a step, its columns are NaN in that row.
        """
        pandas = _pandas()
        parts = []
        for name in [names] if isinstance(names, str) else names:
            one = self.series(run_id, name, from_step=from_step, to_step=to_step)
            assert one.value is not None  # all points were requested, so the response contains no buckets
            titles = [name] if one.value.ndim == 1 else [f"{name}[{i}]" for i in range(one.value.shape[1])]
            index = pandas.Index(one.step, name="step")
            parts.append(pandas.DataFrame(one.value.reshape(len(one.step), -1), index=index, columns=titles))
        return pandas.concat(parts, axis=1).sort_index() if parts else pandas.DataFrame()


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise PandasMissing("a DataFrame needs pandas, which is not installed: pip install 'stablessm-service[frames]'") from None


def _column(pandas: Any, kind: str, values: list[Any]) -> Any:
    """The values of a column. The strings "NaN" and "Infinity" become floats.

    If some integers are missing, the others stay integers.
    """
    if kind == "number":
        return [float("nan") if value is None else float(value) for value in values]
    if kind == "integer" and any(value is None for value in values):
        return pandas.array(values, dtype="Int64")
    return values


def _run_columns(run: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in run.items():
        if name in SECTIONS:
            yield from _section_columns(value or {}, SECTIONS[name])
        elif name != "environment":
            yield name, value


def _section_columns(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _section_columns(value, f"{prefix}{name}.")
        elif prefix or name not in ("name", "tags"):  # the run itself contains the current name and tags
            yield prefix + name, float(value) if value in NONFINITE else value
