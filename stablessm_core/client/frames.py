"""Runs, a sweep, series: each as a pandas DataFrame in one call. Only this needs pandas: `pip install 'stablessm[frames]'`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any

from stablessm_core.client import numbers, runs, sweeps
from stablessm_core.client.connection import Connection
from stablessm_core.nonfinite import NONFINITE

SECTIONS = {"config": "", "result": "result.", "divergence": "divergence."}  # of a run, and what their fields begin with


class PandasMissing(ImportError):
    """A DataFrame is asked for, and pandas is not installed."""


def runs_frame(
    self: Connection, q: str | None = None, *, status: str | None = None, tag: str | None = None, sort: str | None = None,
    limit: int | None = None,
) -> Any:  # fmt: skip
    """One row per run that matches, by its number; configuration by dotted path (`optimizer.lr`), `result.train_loss`, …"""
    pandas = _pandas()
    rows = [dict(_flat(run)) for run in runs.runs(self, q, status=status, tag=tag, sort=sort, limit=limit)]
    frame = pandas.DataFrame(rows)
    return frame.set_index("id") if rows else frame


def sweep_frame(self: Connection, sweep_id: int, *, group_by: Sequence[str] = (), columns: Sequence[str] = ()) -> Any:
    """The sweep's table: one row per run, by its number, or one per group. A number that a run does not have is NaN, too."""
    pandas = _pandas()
    table = sweeps.sweep_table(self, sweep_id, group_by=group_by, columns=columns)
    frame = pandas.DataFrame(
        {c["name"]: _column(pandas, c["kind"], [r[c["name"]] for r in table["rows"]]) for c in table["columns"]}
    )
    frame.attrs |= {name: table[name] for name in ("sweep_id", "name", "finite", "total")}
    return frame.set_index("run") if "run" in frame else frame


def series_frame(
    self: Connection, run_id: int, names: Sequence[str], *, from_step: int | None = None, to_step: int | None = None
) -> Any:
    """Series side by side, a row per step, every recorded point; a vector has a column per eigenvalue: `name[7]`.

    A step at which a series has no point is NaN in its columns.
    """
    pandas = _pandas()
    parts = []
    for name in [names] if isinstance(names, str) else names:
        one = numbers.series(self, run_id, name, from_step=from_step, to_step=to_step)
        assert one.value is not None  # every point is asked for
        titles = [name] if one.value.ndim == 1 else [f"{name}[{i}]" for i in range(one.value.shape[1])]
        index = pandas.Index(one.step, name="step")
        parts.append(pandas.DataFrame(one.value.reshape(len(one.step), -1), index=index, columns=titles))
    return pandas.concat(parts, axis=1).sort_index() if parts else pandas.DataFrame()


def _pandas() -> Any:
    try:
        return import_module("pandas")
    except ImportError:
        raise PandasMissing("a DataFrame needs pandas, which is not installed: pip install 'stablessm[frames]'") from None


def _column(pandas: Any, kind: str, values: list[Any]) -> Any:
    """Numbers as numbers, "NaN" and the infinities included; integers stay integers where some are missing."""
    if kind == "number":
        return [float("nan") if value is None else float(value) for value in values]
    if kind == "integer" and any(value is None for value in values):
        return pandas.array(values, dtype="Int64")
    return values


def _flat(run: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in run.items():
        if name in SECTIONS:
            yield from _fields(value or {}, SECTIONS[name])
        elif name != "environment":
            yield name, value


def _fields(section: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in section.items():
        if isinstance(value, dict):
            yield from _fields(value, f"{prefix}{name}.")
        elif prefix or name not in ("name", "tags"):  # which the run has itself, as they are now
            yield prefix + name, float(value) if value in NONFINITE else value
