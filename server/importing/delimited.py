"""Reads CSV files: a line of names above lines of numbers, in any usual encoding and with any usual delimiter."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from server.importing.decimals import COMMA, COMMAS_AND_DOT, DOTS_AND_COMMA, Decimals, find_decimals, is_number
from server.importing.found_run import Advance, FoundRun, Unreadable
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.tables import run_of_table

pa, arrow_csv = import_module("pyarrow"), import_module("pyarrow.csv")  # they have no types

TOOL = "CSV"
DELIMITERS = ",;\t|"
SUFFIXES = (".csv", ".tsv")
NO_VALUE = ["", "NA", "N/A", "null", "NULL", "None"]  # a cell without a number; NaN is a number
LONGEST_HEAD = 4 << 20  # bytes in which the line of names and a line of numbers must lie
HEAD_ROWS = 20
MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
CONTROL = re.compile("[\x00-\x08\x0e-\x1f]")


@dataclass(frozen=True)
class Layout:
    """How a CSV file is written. comments: lines that begin with # above the line of names."""

    encoding: str
    delimiter: str
    names: list[str]
    comments: int


def layout_of(path: Path) -> Layout | None:
    """The layout of a CSV file; None for another file. Raises Unreadable for a file that is called CSV and cannot be read."""
    encoding, text = _head(path)
    reason = "it is no text" if text is None else "it has no line of names above lines with at least two numbers"
    if text is not None:
        lines = text.splitlines(keepends=True)
        comments = next((i for i, line in enumerate(lines) if not line.startswith("#")), 0)
        for delimiter in DELIMITERS:
            if (names := _names("".join(lines[comments:]), delimiter)) is not None:
                return Layout(encoding, delimiter, names, comments)
    if path.suffix.lower() in SUFFIXES:
        raise Unreadable(f"{path}: it cannot be read as CSV ({reason})")
    return None


def read_table(path: Path, layout: Layout, *, growing: bool = False) -> tuple[Any, Decimals, list[str]]:
    """The table in a CSV file, how its numbers are written, and sentences about what is left out. Raises Unreadable."""
    remarks: list[str] = []
    data: Any = path
    if growing or not layout.encoding.startswith("utf-8"):
        text = path.read_bytes().decode(layout.encoding, errors="replace")
        data = (text[: text.rfind("\n") + 1] if growing else text).encode()
    if layout.encoding == "cp1252":
        remarks.append(f"{path}: it is no UTF-8, so it is read as Latin-1")
    table, wrong = _parsed(data, layout, {})
    decimals = Decimals()
    if any(_has_commas(column) for column in table.columns):
        table, wrong = _parsed(data, layout, dict.fromkeys(table.column_names, pa.string()))
        try:
            decimals = find_decimals(cell for column in table.columns for cell in column.to_pylist() if cell is not None)
        except Unreadable as error:
            raise Unreadable(f"{path}: {error}") from None
    if wrong:
        remarks.append(f"{path}: {wrong:,} rows have another number of cells than the first line; they are left out")
    return _with_one_column_per_name(path, table, remarks), decimals, remarks


def _head(path: Path) -> tuple[str, str | None]:
    """The encoding of a file, and its first lines; None instead of lines if it is no text."""
    data = b""
    with path.open("rb") as file:
        while len(data) < LONGEST_HEAD and (more := file.read(1 << 16)):
            data += more
            if data.count(b"\n") > HEAD_ROWS:
                break
        whole = not file.read(1)
    encoding = next((name for mark, name in MARKS.items() if data.startswith(mark)), "") or _unmarked(data)
    text = data.decode(encoding, errors="replace" if encoding == "cp1252" else "ignore")
    text = text if whole else text[: text.rfind("\n") + 1]
    return encoding, None if CONTROL.search(text) else text


def _unmarked(data: bytes) -> str:
    """The encoding of data without a byte order mark."""
    some = data[: len(data) & ~1][:4096]
    for encoding, nulls, others in (("utf-16-le", some[1::2], some[::2]), ("utf-16-be", some[::2], some[1::2])):
        if some and nulls.count(0) > 0.9 * len(nulls) and 0 not in others:
            return encoding
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data)  # the last character may be cut off
    except UnicodeDecodeError:
        return "cp1252"
    return "utf-8"


def _names(text: str, delimiter: str) -> list[str] | None:
    """The names in the first line, if a line with as many cells and at least two numbers follows soon."""
    try:
        rows = [row for row, _ in zip(csv.reader(io.StringIO(text), delimiter=delimiter), range(HEAD_ROWS), strict=False)]
    except (csv.Error, ValueError):
        return None
    if not rows or len(rows[0]) < 2 or any(map(is_number, rows[0])):
        return None
    fitting = [row for row in rows[1:] if len(row) == len(rows[0])]
    numbers = max((sum(map(_may_be_number, row)) for row in fitting), default=0)
    return rows[0] if numbers >= 2 else None  # one alone may stand in any text


def _may_be_number(cell: str) -> bool:
    return is_number(cell) or any(form.fullmatch(cell.strip()) for form in (COMMA, DOTS_AND_COMMA, COMMAS_AND_DOT))


def _parsed(data: Any, layout: Layout, types: dict[str, Any]) -> tuple[Any, int]:
    """The table, and the number of rows that have another number of cells than the first line."""
    wrong: list[int] = []

    def leave_out(row: Any) -> str:
        wrong.append(row.number or 0)
        return "skip"

    try:
        table = arrow_csv.read_csv(
            io.BytesIO(data) if isinstance(data, bytes) else data,
            read_options=arrow_csv.ReadOptions(use_threads=False, skip_rows=layout.comments, block_size=64 << 20),
            parse_options=arrow_csv.ParseOptions(
                delimiter=layout.delimiter, invalid_row_handler=leave_out, newlines_in_values=True
            ),
            convert_options=arrow_csv.ConvertOptions(null_values=NO_VALUE, strings_can_be_null=True, column_types=types),
        )
    except pa.ArrowInvalid as error:
        where = data if isinstance(data, Path) else "its text"
        raise Unreadable(f"{where}: it cannot be read as CSV ({str(error).splitlines()[0][:200]})") from None
    return table, len(wrong)


def _has_commas(column: Any) -> bool:
    """True if a column of text has a number with a comma."""
    if not pa.types.is_string(column.type):
        return False
    return any(cell is not None and "," in cell and _may_be_number(cell) for cell in column.to_pylist())


def _with_one_column_per_name(path: Path, table: Any, remarks: list[str]) -> Any:
    """The table without columns that repeat another one. Raises Unreadable for different columns of one name."""
    kept: dict[str, int] = {}
    unnamed = 0
    for number, name in enumerate(one.strip() for one in table.column_names):
        if not name:
            unnamed += 1
        elif name not in kept:
            kept[name] = number
        elif repr(table.column(number).to_pylist()) != repr(table.column(kept[name]).to_pylist()):
            raise Unreadable(
                f"{path}: columns {kept[name] + 1} and {number + 1} are both called {name!r} and hold different values, so it is "
                "unclear which one counts"
            )
        else:
            remarks.append(f"{path}: column {number + 1} repeats column {kept[name] + 1}, {name!r}; it is read once")
    if unnamed:
        remarks.append(f"{path}: {unnamed:,} columns without a name are left out")
    return table if len(kept) == len(table.column_names) else table.select(list(kept.values()))


def _claim(file: Candidate) -> Path | None:
    return None if layout_of(file.path) is None else file.path


def _read(file: Claimed, advance: Advance) -> Iterator[FoundRun]:
    layout = layout_of(file.path)
    if layout is None:
        raise Unreadable(f"{file.path}: it has changed while it was read")
    table, decimals, remarks = read_table(file.path, layout, growing=file.growing)
    run = run_of_table(TOOL, file.path, file.name, table, file.step, decimals)
    run.remarks += remarks
    advance(file.path.stat().st_size)
    yield run


IMPORTER = Importer("CSV files with a line of names above lines of numbers", _claim, _read)
