"""A sweep as a grid over two of the settings that the sweep varies. Each cell shows how its runs ended."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.compare.aggregation import Summary, end_of, summary
from server.compare.sweep_table import Column, Table
from server.compare.sweeps import name_of
from server.database.models import NOT_IN_TRASH, Run, Sweep
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.model import NATIVE
from stablessm_core.spec.paths import value_at, with_settings
from stablessm_core.spec.suggestions import did_you_mean

LAYER, MAP, RATE, SEED = "model.layer", "model.reparameterization.name", "optimizer.lr", "train.seed"


@dataclass(frozen=True)
class Cell:
    """The runs that share one row value and one column value, and how these runs ended."""

    of: Summary
    runs: tuple[int, ...]


@dataclass(frozen=True)
class Grid:
    """`cells[i][j]` has the runs with `row_values[i]` and `column_values[j]`. `row` or `column` is None if the sweep varies
    only one setting."""

    sweep_id: int
    name: str | None
    axes: tuple[str, ...]  # every setting that the sweep varies
    row: str | None
    column: str | None
    row_values: tuple[Any, ...]
    column_values: tuple[Any, ...]
    cells: tuple[tuple[Cell, ...], ...]
    of: Summary
    statuses: Mapping[str, int]


def sweep_grid(session: Session, sweep: Sweep, rows: str | None = None, columns: str | None = None) -> Grid:
    """The grid of a sweep over two settings; by default, layers or maps are the rows and learning rates are the columns.

    Raises ValueError for a setting that the sweep does not vary.
    """
    # PostgreSQL does not keep the order of keys. A setting that a search draws from a range has no values and is no axis.
    axes = tuple(sorted(path for path, values in sweep.grid.items() if values))
    for field, path in (("rows", rows), ("columns", columns)):
        if path and path not in axes:
            raise ValueError(f"{field} is {path[:80]!r}{did_you_mean(path, axes)}; allowed: {', '.join(axes)}")
    if rows and rows == columns:
        raise ValueError(f"columns is {rows!r}, the same as rows; allowed: {', '.join(a for a in axes if a != rows) or 'none'}")
    row, column = chosen_axes(axes, rows, columns)
    runs = list(session.scalars(select(Run).where(Run.sweep_id == sweep.id, NOT_IN_TRASH).order_by(Run.id)))
    row_values, column_values = (tuple(sweep.grid[path]) if path else (None,) for path in (row, column))
    where: dict[tuple[int, int], list[Run]] = {}
    in_rows, in_columns = _positions_of_many(row, row_values), _positions_of_many(column, column_values)
    for run in runs:
        for cell in itertools.product(in_rows(run.config), in_columns(run.config)):
            where.setdefault(cell, []).append(run)
    cells = tuple(tuple(_cell(where.get((i, j), [])) for j in range(len(column_values))) for i in range(len(row_values)))
    statuses = {status: sum(run.status == status for run in runs) for status in sorted({run.status for run in runs})}
    return Grid(
        sweep.id, name_of(sweep), axes, row, column, row_values, column_values, cells, summary(map(end_of, runs)), statuses
    )


def chosen_axes(axes: Sequence[str], rows: str | None, columns: str | None) -> tuple[str | None, str | None]:
    """The settings for (rows, columns). If one is None, this function chooses it: preferably layers or maps for the rows and
    learning rates for the columns. Runs that differ only by seed share a cell."""
    free = [path for path in axes if path not in (rows, columns) and (path != SEED or len(axes) == 1)]
    several = len(free) > (0 if columns else 1)
    named = next((path for path in (LAYER, MAP) if path in free), None)
    rows = rows or named or (next((path for path in free if path != RATE), None) if several else None)
    rest = [path for path in free if path != rows]
    return rows, columns or (RATE if RATE in rest else next(iter(rest), None))


def grid_json(grid: Grid) -> dict[str, Any]:
    """The grid as a GridAnswer."""
    return {
        "sweep_id": grid.sweep_id,
        "axes": list(grid.axes),
        "rows": {"path": grid.row, "values": list(grid.row_values)},
        "columns": {"path": grid.column, "values": list(grid.column_values)},
        "cells": [
            [{"outcome": cell.of.outcome, **asdict(cell.of), "runs": list(cell.runs)} for cell in line] for line in grid.cells
        ],
        "statuses": dict(grid.statuses),
        **{name: value for name, value in asdict(grid.of).items() if name != "loss"},
    }


def grid_table(grid: Grid) -> Table:
    """The grid as a table of strings, for server.compare.table_formats."""
    title = " / ".join(path for path in (grid.row, grid.column) if path)
    columns = [Column(title, "text", "setting that varies between the rows")]
    columns += [Column(_spelled(value) if grid.column else "all", "text", grid.column or "") for value in grid.column_values]
    rows = tuple(
        (_spelled(value) if grid.row else "all", *(cell_text(cell.of) for cell in line))
        for value, line in zip(grid.row_values, grid.cells, strict=True)
    )
    return Table(grid.sweep_id, grid.name, tuple(columns), rows, grid.of, grid.statuses)


def cell_text(of: Summary) -> str:
    """The text of a cell: median and quartiles of the finite losses, then finite / ended and stable / ended."""
    if not of.total:
        return "no run"
    loss, middle = of.loss, ""
    if loss.median is not None:
        middle = f"{loss.median:.4g}" + (f" [{loss.q25:.4g}, {loss.q75:.4g}]" if of.finite > 1 else "") + "; "
    others = [f"{n} {name}" for name, n in (("not known", of.unknown), ("lost", of.lost), ("open", of.open)) if n]
    ended = f"{of.ended} ended" if of.open else str(of.ended)
    counts = [f"{of.finite}/{ended} finite", f"{of.stable}/{ended} stable"] if of.ended else []
    return middle + ", ".join([*counts, *others])


def _cell(runs: Sequence[Run]) -> Cell:
    return Cell(summary(end_of(run) for run in runs), tuple(run.id for run in runs))


def _positions_of_many(path: str | None, values: Sequence[Any]) -> Callable[[Mapping[str, Any]], list[int]]:
    """`positions` as a function of the configuration alone, for the many runs of a sweep, which share few values."""
    known: dict[str, list[int]] = {}

    def found(config: Mapping[str, Any]) -> list[int]:
        stored = _sections(config, path or "")
        if stored not in known:
            known[stored] = positions(config, path, values)
        return known[stored]

    return found


def _sections(config: Mapping[str, Any], path: str) -> str:
    """The sections of a configuration on which a run's value of this setting depends, as JSON."""
    section = path.partition(".")[0]
    return json.dumps({name: config[name] for name in dict.fromkeys(("task", section)) if name in config}, sort_keys=True)


def positions(config: Mapping[str, Any], path: str | None, values: Sequence[Any]) -> list[int]:
    """The positions of a run's value among the `values` of an axis. The stored value may be an expanded form, such as a whole
    section instead of a layer's name."""
    if path is None:
        return [0]
    spelled = _spelled(value_at(config, path))
    found = [i for i, value in enumerate(values) if _spelled(value) == spelled]
    if found and NATIVE not in values:
        return found
    section, stored = path.partition(".")[0], _sections(config, path)
    return [i for i, value in enumerate(values) if i in found or _settles(stored, section, path, json.dumps(value))]


@lru_cache(maxsize=20_000)
def _settles(stored: str, section: str, path: str, value: str) -> bool:
    """True if setting this value leaves the section of the configuration unchanged."""
    config = json.loads(stored)
    try:
        as_it_is = parse_config(config).model_dump()
        return bool(parse_config(with_settings(config, {path: json.loads(value)})).model_dump()[section] == as_it_is[section])
    except ConfigError:
        return False


def _spelled(value: Any) -> str:
    """The value as text. 1 and 1.0 give the same text, because they are the same value of a grid."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e15:
        value = int(value)
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)
