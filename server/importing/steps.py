"""Finds the steps of the rows of a table."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path
from typing import Any

from server.importing.decimals import Decimals
from server.importing.found_run import FoundRun, Unreadable
from stablessm_core.spec.suggestions import did_you_mean, listed

STEPS = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "update", "epoch")  # the first one counts
EPOCH = "epoch"
POINT = Decimals()


def steps_of(run: FoundRun, path: Path, table: Any, asked: str | None, decimals: Decimals) -> tuple[list[int | None], set[str]]:
    """The step of each row, and the names of the columns that are no series. asked: the name of the column of steps; None finds
    it. Raises Unreadable."""
    column = _step_column(path, table.column_names, asked)
    if column is None:
        run.remarks.append(f"{path}: no column has a name such as step, so rows are numbered from 1; --step COLUMN names one")
        return list(range(1, table.num_rows + 1)), set()
    steps = [whole(value, decimals) for value in table.column(column).to_pylist()]
    if missing := sum(found is None for found in steps):
        run.left_out[f"rows whose {column!r} is no whole number"] += missing
    epochs = _column(table, EPOCH)
    if asked is None and epochs is not None and epochs != column:
        steps = _across_epochs(run, path, column, steps, [whole(value, decimals) for value in table.column(epochs).to_pylist()])
    return steps, {column}


def step_key(names: list[str], asked: str | None = None) -> str | None:
    """The name that holds the steps among these; None if none does."""
    if asked is not None:
        return asked if asked in names else None
    lower = {name.strip().lower(): name for name in reversed(names)}
    return next((lower[name] for name in STEPS if name in lower), None)


def whole(value: Any, decimals: Decimals = POINT) -> int | None:
    """The value as a whole number; None if it is none."""
    if isinstance(value, str):
        value = decimals.number(value)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value == int(value)):
        return int(value)
    return None


def _step_column(path: Path, names: list[str], asked: str | None) -> str | None:
    if asked is not None and asked not in names:
        raise Unreadable(f"{path}: no column is called {asked!r}{did_you_mean(asked, names)}; it has {listed(names)}")
    return step_key(names, asked)


def _column(table: Any, name: str) -> str | None:
    return next((one for one in table.column_names if one.strip().lower() == name), None)


def _across_epochs(run: FoundRun, path: Path, column: str, steps: list[int | None], epochs: list[int | None]) -> list[int | None]:
    """The steps, continued across epochs if they start again in each of them. Raises Unreadable if they start again elsewhere."""
    rows = [(step, epoch) for step, epoch in zip(steps, epochs, strict=True) if step is not None and epoch is not None]
    back = [i for i in range(1, len(rows)) if rows[i][0] < rows[i - 1][0]]
    if len(rows) < sum(step is not None for step in steps) or not back:
        return steps
    if any(later[1] < earlier[1] for earlier, later in pairwise(rows)):
        return steps  # the program went back to an earlier epoch: its last values count
    if inside := next((i for i in back if rows[i][1] == rows[i - 1][1]), None):
        raise Unreadable(
            f"{path}: {column!r} goes back from {rows[inside - 1][0]:,} to {rows[inside][0]:,} inside epoch {rows[inside][1]:,}, "
            "so it is unclear which step a row belongs to; --step COLUMN names another column, or this one if the last row counts"
        )
    stride = next((b[0] - a[0] for a, b in pairwise(rows) if b[0] > a[0]), 1)
    offsets, offset, begin = [0], 0, rows[0][0]
    for (before, old), (now, new) in pairwise(rows):
        if new != old and now <= before:
            offset, begin = offset + before - begin + stride, now
        offsets.append(offset)
    run.remarks.append(f"{path}: {column!r} starts again in each epoch; the steps continue across epochs here")
    numbers = iter([step + offset for (step, _), offset in zip(rows, offsets, strict=True)])
    return [None if step is None else next(numbers) for step in steps]
