"""Reads the CSV files that TensorBoard's page exports: Wall time, Step and Value of one scalar of one run. The name of such a
file is `run-<run>-tag-<tag>.csv`. The files of a run in one folder are one run."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from server.importing.delimited import layout_of, read_table
from server.importing.found_run import Advance, FoundRun, Unreadable
from server.importing.importer import Candidate, Claimed, Importer, group_of
from server.importing.steps import whole

TOOL = "TensorBoard CSV"
COLUMNS = ["Wall time", "Step", "Value"]
NAME = re.compile(r"run-(?P<run>.+?)-tag-(?P<tag>.+?)( ?\(\d+\))?\.csv", re.IGNORECASE)  # browsers add a number in brackets


def _claim(file: Candidate) -> tuple[Path, str] | None:
    if file.path.suffix.lower() != ".csv":
        return None
    layout = layout_of(file.path)
    if layout is None or [name.strip() for name in layout.names] != COLUMNS:
        return None
    return file.path.parent, _names(file.path)[0]


def _names(path: Path) -> tuple[str, str]:
    """The names of the run and of its scalar."""
    found = NAME.fullmatch(path.name)
    return (found["run"], found["tag"]) if found else (path.stem, "value")


def _read(files: Claimed, advance: Advance) -> Iterator[FoundRun]:
    name = _names(files.path)[0]
    # the run and the times of its first point: further files and rows do not change them
    run = FoundRun(TOOL, f"{files.path.resolve().parent}\0{name}", name, group=group_of(name.replace("_", "/")))
    for path in files.paths:
        layout = layout_of(path)
        if layout is None:
            raise Unreadable(f"{path}: it has changed while it was read")
        table, decimals, remarks = read_table(path, layout, growing=files.growing)
        run.remarks += remarks
        times, steps, values = (column.to_pylist() for column in table.columns)
        for at, step, value in zip(times, steps, values, strict=True):
            number = decimals.number(value) if isinstance(value, str) else value
            place = whole(step, decimals)
            if number is None or place is None:
                run.left_out["rows without a step or a value"] += 1
                continue
            run.add(_names(path)[1], place, float(number))
            moment = decimals.number(at) if isinstance(at, str) else at
            run.saw(None if moment is None else float(moment))
        advance(path.stat().st_size)
    yield run


IMPORTER = Importer("TensorBoard's exports (CSV)", _claim, _read)
