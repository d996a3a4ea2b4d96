"""A sweep as one table: one row per run, or one row per group of runs, with settings and results.

Every run of the sweep has a row, even a lost run, and non-finite numbers are kept. Groups follow the rules of
server.compare.aggregation: statistics are over the finite runs and are shown with finite / total and stable / total.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from typing import Any, Literal

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.compare.aggregation import End, Spread, Summary, end_of, spread, summary
from server.compare.sweeps import name_of
from server.database.models import NOT_IN_TRASH, AlertRow, Run, Sweep
from server.search.layers import layer_label
from stablessm_core.spec.paths import value_at
from stablessm_core.spec.suggestions import did_you_mean, listed
from stablessm_core.statistics import wilson
from stablessm_core.telemetry.how import how_of

Kind = Literal["integer", "number", "flag", "text"]
Value = int | float | bool | str | None

NOT_METRICS = ("seconds", "telemetry_dropped", "telemetry_errors")  # fields of a result that are not metrics of the model
METRICS = ("train_loss", "eval_loss", "eval_accuracy")  # metrics whose columns come first, even if no run has them
WHERE = ("step", "layer", "eigenvalue", "tensor")  # fields of a divergence that state where the run diverged
_OUTCOME = "stable, unstable or unknown (finished with a finite loss), lost, or open"
STATISTICS = tuple(part.name for part in fields(Spread))
COUNTS = ("finite", "stable", "unstable", "lost", "open", "total")


@dataclass(frozen=True)
class Column:
    name: str
    kind: Kind
    meaning: str
    metric: bool = False  # if True, a table of groups has statistics of this column


@dataclass(frozen=True)
class Table:
    """The values of each row are in the order of `columns`; None means that a run has no such value. `of` summarizes how the
    runs ended."""

    sweep_id: int
    name: str | None
    columns: tuple[Column, ...]
    rows: tuple[tuple[Value, ...], ...]
    of: Summary
    statuses: Mapping[str, int]
    ends: Mapping[int, End] = field(default_factory=dict)  # keyed by run number
    notes: tuple[str, ...] = ()  # sentences that Markdown and LaTeX show with the table

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


def run_table(session: Session, sweep: Sweep) -> Table:
    """One row per run of the sweep, in the order of the grid."""
    alerts = select(func.count()).where(AlertRow.run_id == Run.id).correlate(Run).scalar_subquery()
    found = session.execute(select(Run, alerts).where(Run.sweep_id == sweep.id, NOT_IN_TRASH).order_by(Run.id)).all()
    runs = [run for run, _ in found]
    ends = {run.id: end_of(run) for run in runs}
    results = [run.result or {} for run in runs]
    metrics = dict.fromkeys([*METRICS, *(name for result in results for name in result if name not in NOT_METRICS)])
    columns: dict[Column, list[Any]] = {
        Column("run", "integer", "number of the run"): [run.id for run in runs],
        Column("name", "text", "name of the run"): [run.name for run in runs],
        **_project(runs),
        **_settings(runs, sweep.grid),
        Column("status", "text", "status of the run"): [run.status for run in runs],
        Column("outcome", "text", _OUTCOME): [end.outcome for end in ends.values()],
        Column("step", "integer", "training steps done"): [run.step for run in runs],
        Column("steps", "integer", "training steps in total"): [how_of(run).total_steps for run in runs],
        **{_metric(name): [_number(result.get(name)) for result in results] for name in metrics},
        **{_divergence(part): [(run.divergence or {}).get(part) for run in runs] for part in WHERE},
        Column("alerts", "integer", "alerts that the run raised"): [count for _, count in found],
        Column("duration_seconds", "number", "time from its first start to its end, in s"): [_duration(run) for run in runs],
        Column("host", "text", "machine that trained it last"): [run.host for run in runs],
        Column("status_reason", "text", "reason for its status"): [run.status_reason or None for run in runs],
    }
    rows = tuple(zip(*columns.values(), strict=True))
    statuses = {status: sum(run.status == status for run in runs) for status in dict.fromkeys(run.status for run in runs)}
    return Table(sweep.id, name_of(sweep), tuple(columns), rows, summary(ends.values()), statuses, ends)


def _project(runs: Sequence[Run]) -> dict[Column, list[Any]]:
    """The column of the project; none if no run belongs to a project."""
    projects = [run.project for run in runs]
    return {Column("project", "text", "project of the run"): projects} if any(projects) else {}


def _metric(name: str) -> Column:
    return Column(name, "integer" if name == "rollbacks" else "number", f"{name} at the end", metric=True)


def _divergence(part: str) -> Column:
    return Column(f"diverged_{part}", "text" if part == "tensor" else "integer", f"{part} of the first non-finite number")


def group_table(table: Table, by: Sequence[str]) -> Table:
    """One row per combination of values in the columns `by`. A row shows how the runs with these values ended, and statistics
    of the metrics of the finite runs.

    Raises ValueError for an unknown column.
    """
    keys = [_index(table, name, "group_by") for name in by]
    run, status = table.names.index("run"), table.names.index("status")
    metrics = [i for i, column in enumerate(table.columns) if column.metric]
    groups: dict[tuple[Value, ...], list[tuple[Value, ...]]] = {}
    for row in table.rows:
        groups.setdefault(tuple(row[i] for i in keys), []).append(row)
    rows = []
    for key, members in groups.items():
        ends = {row[run]: table.ends[int(row[run])] for row in members}  # type: ignore[arg-type]
        of = summary(ends.values())
        counts = [
            *(getattr(of, name) for name in COUNTS),
            *(sum(row[status] == s for row in members) for s in ("diverged", "failed")),
            *astuple(wilson(of.finite, of.ended)),
        ]
        sound = [row for row in members if ends[row[run]].finite]
        spreads = [value for i in metrics for value in astuple(spread([float(row[i]) for row in sound if row[i] is not None]))]  # type: ignore[arg-type]
        rows.append((*key, *counts, *spreads))
    columns = [table.columns[i] for i in keys]
    columns += [Column(name, "integer", f"number of {name} runs in the group") for name in (*COUNTS, "diverged", "failed")]
    columns += [
        Column(f"finite_{end}", "number", f"{end} end of the Wilson interval of finite / ended") for end in ("low", "high")
    ]
    columns += [
        Column(f"{table.columns[i].name}_{name}", "number", f"{name} of {table.columns[i].name} over the group's finite runs")
        for i in metrics
        for name in STATISTICS
    ]
    return replace(table, columns=tuple(columns), rows=tuple(rows))


def select_columns(table: Table, names: Sequence[str]) -> Table:
    """The table with only these columns, in this order. Raises ValueError for an unknown column."""
    return _only(table, [_index(table, name, "columns") for name in names])


def drop_empty_columns(table: Table) -> Table:
    """The table without columns that have no value in any row."""
    return _only(table, [i for i in range(len(table.columns)) if any(row[i] is not None for row in table.rows)])


def _only(table: Table, kept: Sequence[int]) -> Table:
    return replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
    )


def _settings(runs: Sequence[Run], grid: Iterable[str]) -> dict[Column, list[Any]]:
    """The settings that the grid varies, plus the seed. The run's name is left out, because it has its own column."""
    columns: dict[Column, list[Any]] = {}
    for path in dict.fromkeys([*(path for path in grid if path != "name"), "train.seed"]):
        values = [_plain(layer_label(run.config) if path == "model.layer" else value_at(run.config, path)) for run in runs]
        kind = _kind(values)
        if kind == "text":
            values = [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
        columns[Column(path, kind, "setting of the run")] = values
    return columns


def _plain(value: Any) -> Value:
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value, ensure_ascii=False)


def _kind(values: Sequence[Value]) -> Kind:
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "flag"
    if kinds == {int}:
        return "integer"
    return "number" if kinds and kinds <= {int, float} else "text"


def _number(value: Any) -> Any:
    """A number from a result. NaN and the infinities are stored as strings; they are converted to floats."""
    return float(value) if isinstance(value, str) else value


def _duration(run: Run) -> float | None:
    return None if run.started_at is None or run.finished_at is None else run.finished_at - run.started_at


def _index(table: Table, name: str, field: str) -> int:
    if name not in table.names:
        raise ValueError(f"{field} has {name[:80]!r}{did_you_mean(name, table.names)}; allowed: {listed(table.names)}")
    return table.names.index(name)
