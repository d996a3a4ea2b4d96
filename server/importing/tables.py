"""Makes a run of a table: each column of numbers is a series, and one column holds the steps."""

from __future__ import annotations

import hashlib
from importlib import import_module
from pathlib import Path
from typing import Any

from server.importing.decimals import Decimals
from server.importing.found_run import FoundRun
from server.importing.importer import group_of
from server.importing.steps import steps_of

# pyarrow has no types
pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")


def run_of_table(tool: str, path: Path, name: str, table: Any, step: str | None, decimals: Decimals) -> FoundRun:
    """The run in a table. step: the name of the column of steps; None finds it. decimals: how numbers in text are read. Raises
    Unreadable."""
    run = FoundRun(tool, identity_of(path, table, decimals), name, group=group_of(name))
    steps, used = steps_of(run, path, table, step, decimals)
    for number, series in enumerate(table.column_names):
        if series not in used:
            _add_column(run, series, steps, table.column(number), decimals)
    return run


def _add_column(run: FoundRun, name: str, steps: list[int | None], column: Any, decimals: Decimals) -> None:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = compute.cast(column, pa.float64(), safe=False).to_pylist()
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        cells = column.to_pylist()
        numbers = [None if cell is None else decimals.number(cell) for cell in cells]
        words = sum(cell is not None for cell in cells) - sum(number is not None for number in numbers)
        if not any(number is not None for number in numbers):
            run.left_out["columns that are no numbers"] += words > 0
            return
        if words:
            run.left_out[f"cells of {name!r} that are no numbers"] += words
    else:
        run.left_out["columns that are no numbers"] += column.null_count < len(column)
        return
    name = name.strip()
    for step, number in zip(steps, numbers, strict=True):
        if step is not None and number is not None:
            run.add(name, step, number)


def identity_of(path: Path, table: Any, decimals: Decimals) -> str:
    """What names the run of a table: the place of the file and the numbers of its first row, which new columns and rows do not
    change."""
    cells = {}
    if table.num_rows:
        for name, value in table.slice(0, 1).to_pylist()[0].items():
            number = decimals.number(value) if decimals.comma and isinstance(value, str) else value
            if isinstance(number, int | float):
                cells[name] = repr(float(number))
    known = "\0".join(f"{name}={cells[name]}" for name in sorted(cells))
    return f"{path.resolve()}\0{hashlib.sha256(known.encode()).hexdigest()}"
