"""Reads CSV and Parquet files: each column of numbers is a series, and one column holds the steps."""

from __future__ import annotations

import csv
import hashlib
import math
from importlib import import_module
from pathlib import Path
from typing import Any

from server.importing.found_run import Advance, FoundRun, Unreadable
from stablessm_core.spec.suggestions import did_you_mean, listed

# pyarrow has no types
pa, compute = import_module("pyarrow"), import_module("pyarrow.compute")
arrow_csv, parquet = import_module("pyarrow.csv"), import_module("pyarrow.parquet")

CSV, PARQUET = "CSV", "Parquet"
PARQUET_MAGIC = b"PAR1"
DELIMITERS = ",;\t"
STEPS = ("step", "global_step", "_step", "trainer/global_step", "iteration", "iter", "update", "epoch")  # the first one counts
NO_VALUE = ["", "NA", "N/A", "null", "NULL", "None"]  # a cell without a number; NaN is a number
CELLS_OF_IDENTITY = 16


def recognizes_parquet(head: bytes) -> bool:
    """True if the file begins as a Parquet file."""
    return head.startswith(PARQUET_MAGIC)


def delimiter_of(head: bytes) -> str | None:
    """The delimiter of a CSV file with a line of names and a line with at least two numbers below it; None for another file."""
    try:
        # the last line may be cut off, and a character with it
        lines = head.decode("utf-8-sig", errors="strict" if len(head) < 4096 else "ignore").splitlines()
    except UnicodeDecodeError:
        return None
    if len(lines) < 2 or "\0" in lines[0]:
        return None
    for delimiter in DELIMITERS:
        try:
            names, first = list(csv.reader(lines[:2], delimiter=delimiter))
        except (csv.Error, ValueError):
            continue
        if len(names) < 2 or len(first) != len(names) or len(set(names)) < len(names):
            continue
        numbers = sum(map(_is_number, first))  # one alone may stand in any text
        if not any(map(_is_number, names)) and numbers >= 2:
            return delimiter
    return None


def read_csv(path: Path, name: str, delimiter: str, step: str | None, advance: Advance) -> FoundRun:
    """The run in a CSV file. step: the name of the column of steps; None finds it. Rows with too many or too few cells are left
    out. Raises Unreadable."""
    wrong: list[int] = []

    def leave_out(row: Any) -> str:
        wrong.append(row.number or 0)
        return "skip"

    try:
        table = arrow_csv.read_csv(
            path,
            read_options=arrow_csv.ReadOptions(use_threads=False),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, invalid_row_handler=leave_out, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(null_values=NO_VALUE, strings_can_be_null=True),
        )
    except pa.ArrowInvalid as error:
        raise Unreadable(f"{path}: it cannot be read as CSV ({_first_line(error)})") from None
    run = _run(CSV, path, name, table, step)
    if wrong:
        run.remarks.append(f"{path}: {len(wrong):,} rows have another number of cells than the first line; they are left out")
    advance(path.stat().st_size)
    return run


def read_parquet(path: Path, name: str, step: str | None, advance: Advance) -> FoundRun:
    """The run in a Parquet file, as `read_csv`. A damaged file is read up to its first damaged row group."""
    try:
        file = parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise Unreadable(f"{path}: its end, which describes its content, is damaged or missing ({_first_line(error)})") from None
    with file:
        groups, remark = [], ""
        for number in range(file.num_row_groups):
            try:
                groups.append(file.read_row_group(number, use_threads=False))
            except (pa.ArrowException, OSError) as error:
                remark = f"{path}: row group {number + 1:,} is damaged ({_first_line(error)}); it is read up to there"
                break
        table = pa.concat_tables(groups) if groups else file.schema_arrow.empty_table()
    run = _run(PARQUET, path, name, table, step)
    run.remarks += [remark] if remark else []
    advance(path.stat().st_size)
    return run


def _run(tool: str, path: Path, name: str, table: Any, step: str | None) -> FoundRun:
    run = FoundRun(tool, _identity(path, table), name)
    column = _step_column(path, table.column_names, step)
    if column is None:
        run.remarks.append(f"{path}: no column has a name such as step, so rows are numbered from 1; --step COLUMN names one")
        steps: list[int | None] = list(range(1, table.num_rows + 1))
    else:
        steps = [_whole(value) for value in table.column(column).to_pylist()]
        if missing := sum(found is None for found in steps):
            run.left_out[f"rows whose {column!r} is no whole number"] += missing
    for number, series in enumerate(table.column_names):
        if series != column:
            _add_column(run, series, steps, table.column(number))
    return run


def _step_column(path: Path, names: list[str], asked: str | None) -> str | None:
    if asked is not None:
        if asked not in names:
            has = f"it has {listed(names)}"
            raise Unreadable(f"{path}: no column is called {asked!r}{did_you_mean(asked, names)}; {has}")
        return asked
    lower = {name.strip().lower(): name for name in reversed(names)}
    return next((lower[name] for name in STEPS if name in lower), None)


def _add_column(run: FoundRun, name: str, steps: list[int | None], column: Any) -> None:
    kind = column.type
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind):
        numbers = compute.cast(column, pa.float64(), safe=False).to_pylist()
    elif pa.types.is_string(kind) or pa.types.is_large_string(kind):
        cells = column.to_pylist()
        numbers = [float(cell) if cell is not None and _is_number(cell) else None for cell in cells]
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


def _identity(path: Path, table: Any) -> str:
    # the place of the file and the numbers of its first row: new columns and rows do not change it
    cells = {}
    if table.num_rows:
        first = table.slice(0, 1).to_pylist()[0]
        cells = {name: repr(float(value)) for name, value in first.items() if isinstance(value, int | float)}
    known = "\0".join(f"{name}={cells[name]}" for name in sorted(cells))
    return f"{path.resolve()}\0{hashlib.sha256(known.encode()).hexdigest()}"


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell


def _whole(value: Any) -> int | None:
    if isinstance(value, str) and _is_number(value):
        value = float(value)
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value) and value == int(value)):
        return int(value)
    return None


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0][:200] if str(error) else type(error).__name__
