"""A table for a paper: metrics of groups of runs, with the number of finite runs inside every cell.

The rows are the values of some settings, and the columns are metrics, or a metric at every value of one more setting. The rules
are those of server.compare.aggregation: statistics are over finite runs, and a cell says how many of the ended runs these are.
A run that is finite but whose value of the metric is not counts as lost in the metric's cells.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from sqlalchemy.orm import Session

from server.compare.aggregation import End, Spread, Summary, end_of, spread, summary
from server.compare.claims import GroupClaim, claims_of
from server.compare.comparison import SHORT_PATHS, flat_config
from server.compare.sweep_table import NOT_METRICS
from server.database.models import Run
from server.series.plans import Selection
from server.series.reading import read_many, recorded_layouts
from stablessm_core.spec.suggestions import did_you_mean, listed
from stablessm_core.spec.titles import setting_title
from stablessm_core.telemetry.series import EVAL_ACCURACY, EVAL_LOSS, TRAIN_LOSS

Statistic = Literal["median", "mean"]
MAX_METRICS, MAX_COLUMNS = 8, 60
POINTS = 10  # buckets that are read of a series whose extreme value is looked for
BEST = {  # metric -> (series, its best value)
    "best_train_loss": (TRAIN_LOSS, "min"),
    "best_eval_loss": (EVAL_LOSS, "min"),
    "best_eval_accuracy": (EVAL_ACCURACY, "max"),
}
OF_RUNS = ("step", "steps_per_second", "largest_ratio", "largest_relative_step", "nearest_distance", "overflow_budget")
TITLES = {
    "train_loss": "final loss",
    "eval_loss": "evaluation loss",
    "eval_accuracy": "accuracy",
    "test_loss_at_best": "test loss at the best validation",
    "test_accuracy_at_best": "test accuracy at the best validation",
    "best_train_loss": "best loss",
    "best_eval_loss": "best evaluation loss",
    "best_eval_accuracy": "best accuracy",
    "duration_seconds": "duration (s)",
    "steps_per_second": "steps per second",
    "largest_ratio": "largest gradient over weight",
    "nearest_distance": "smallest distance to the boundary",
}
SHORT = {"loss": "train_loss", "accuracy": "eval_accuracy", "best_loss": "best_train_loss", "best_accuracy": "best_eval_accuracy"}


@dataclass(frozen=True)
class Cell:
    """One metric of one group of runs. finite: runs whose metric enters the statistics. ended: all runs of the group that have
    ended. recorded: whether any run has the metric."""

    finite: int
    ended: int
    open: int
    recorded: bool
    of: Spread


@dataclass(frozen=True)
class Head:
    """A column: a metric, and the value of the setting `across` if there is one."""

    metric: str
    value: Any = None


@dataclass(frozen=True)
class PaperTable:
    """`keys[i]` has the values of the settings `rows`, and `cells[i][j]` belongs to the column `heads[j]`."""

    rows: tuple[str, ...]
    across: str | None
    heads: tuple[Head, ...]
    keys: tuple[tuple[Any, ...], ...]
    cells: tuple[tuple[Cell, ...], ...]
    of: Summary
    statuses: Mapping[str, int]
    claims: tuple[GroupClaim, ...] = ()  # about the groups of runs that the rows show


def paper_table(
    session: Session, runs: Sequence[Run], *, rows: Sequence[str], across: str | None, metrics: Sequence[str]
) -> PaperTable:
    """The table of these runs. rows, across: paths of settings or their short names. Raises ValueError for an unknown name."""
    flat = [flat_config(run.config) for run in runs]
    rows = tuple(dict.fromkeys(_setting("rows", path, flat) for path in rows))
    across = _setting("across", across, flat) if across else None
    if across in rows:
        raise ValueError(f"across is {across!r}, which is also in rows; allowed: a setting that is not in rows")
    values = {name: _values(session, runs, name) for name in _metrics(runs, metrics)}
    keys = _ordered(tuple(_plain(config.get(path)) for path in rows) for config in flat)
    columns = _ordered((_plain(config.get(across)),) for config in flat) if across else [(None,)]
    if len(columns) * len(values) > MAX_COLUMNS:
        raise ValueError(f"across gives {len(columns) * len(values)} columns; allowed: at most {MAX_COLUMNS}")
    where: dict[tuple[Any, Any], list[int]] = {}
    for i, config in enumerate(flat):
        key = tuple(_plain(config.get(path)) for path in rows)
        where.setdefault((key, _plain(config.get(across)) if across else None), []).append(i)
    ends = [end_of(run) for run in runs]
    heads = tuple(Head(metric, value) for metric in values for (value,) in columns)
    cells = tuple(
        tuple(_cell([(ends[i], values[head.metric][i]) for i in where.get((key, head.value), [])]) for head in heads)
        for key in keys
    )
    statuses = {status: sum(run.status == status for run in runs) for status in sorted({run.status for run in runs})}
    claims = tuple(claims_of(session, runs, rows)) if rows else ()
    return PaperTable(rows, across, heads, tuple(keys), cells, summary(ends), statuses, claims)


def metric_title(metric: str) -> str:
    """The name of a metric in a header."""
    return TITLES.get(metric) or metric.replace("_", " ")


def row_titles(table: PaperTable) -> list[str]:
    """The headers of the settings. Two settings with the same name get their paths."""
    names = [setting_title(path) for path in table.rows]
    return [path if names.count(name) > 1 else name for path, name in zip(table.rows, names, strict=True)]


def value_text(value: Any) -> str:
    """The value of a setting, in a row or a header."""
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def cell_json(cell: Cell) -> dict[str, Any]:
    return {"finite": cell.finite, "ended": cell.ended, "open": cell.open, **asdict(cell.of)}


def _metrics(runs: Sequence[Run], wanted: Sequence[str]) -> list[str]:
    """The metrics by their own names. Raises ValueError for an unknown metric and for too many."""
    named = dict.fromkeys(name for run in runs for name in run.result or {} if name not in NOT_METRICS)
    known = dict.fromkeys(("train_loss", "eval_loss", "eval_accuracy", *BEST, *named, *OF_RUNS, "duration_seconds"))
    for name in wanted:
        if SHORT.get(name, name) not in known:
            guess = did_you_mean(name, [*known, *SHORT])
            raise ValueError(f"metric has {name[:80]!r}{guess}; allowed: {listed(known)}")
    if len(wanted) > MAX_METRICS:
        raise ValueError(f"metric has {len(wanted)} names; allowed: at most {MAX_METRICS}")
    return list(dict.fromkeys(SHORT.get(name, name) for name in wanted)) or ["train_loss"]


def _setting(field: str, path: str, flat: Sequence[Mapping[str, Any]]) -> str:
    found = SHORT_PATHS.get(path, path)
    if flat and not any(found in config for config in flat):
        known = sorted({name for config in flat for name in config})
        raise ValueError(f"{field} has {path[:80]!r}{did_you_mean(path, [*known, *SHORT_PATHS])}; allowed: {listed(known, 20)}")
    return found


def _values(session: Session, runs: Sequence[Run], metric: str) -> list[float | None]:
    """The metric of each run; None if the run does not have it."""
    if metric in BEST:
        series, part = BEST[metric]
        layouts = recorded_layouts(session, [run.id for run in runs], name=series)
        chosen = [Selection(layout, layout.find(series)) for layout in layouts.values() if series in layout.series]
        read = zip(chosen, read_many(session, chosen, POINTS), strict=True)
        best = {selection.run_id: _extreme(data, part) for selection, data in read}
        return [best.get(run.id) for run in runs]
    if metric in OF_RUNS:
        return [_number(getattr(run, metric)) for run in runs]
    if metric == "duration_seconds":
        return [None if run.started_at is None or run.finished_at is None else run.finished_at - run.started_at for run in runs]
    return [_number((run.result or {}).get(metric)) for run in runs]


def _extreme(data: Any, part: str) -> float | None:
    """The smallest or largest finite value of a series; NaN if no value is finite."""
    values = data.value if data.value is not None else getattr(data, part)
    if values is None or not values.size:
        return None
    finite = values[np.isfinite(values)]
    return float(finite.min() if part == "min" else finite.max()) if finite.size else math.nan


def _cell(members: Sequence[tuple[End, float | None]]) -> Cell:
    sound = [value for end, value in members if end.finite and value is not None and math.isfinite(value)]
    open_ = sum(end.outcome == "open" for end, _ in members)
    recorded = any(value is not None for _, value in members)
    return Cell(len(sound), len(members) - open_, open_, recorded, spread(sound))


def _number(value: Any) -> float | None:
    return None if value is None or isinstance(value, bool) else float(value)  # a result has "NaN" for NaN


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _ordered(keys: Any) -> list[Any]:
    """The different keys in the order in which they appear; numbers in the order of their size."""
    found = list(dict.fromkeys(keys))
    numbers = [i for i in range(len(found[0]) if found else 0) if all(_is_number(key[i]) for key in found)]
    firsts = [{key[i]: n for n, key in reversed(list(enumerate(found)))} for i in range(len(found[0]) if found else 0)]
    return sorted(found, key=lambda key: [key[i] if i in numbers else firsts[i][key[i]] for i in range(len(key))])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
