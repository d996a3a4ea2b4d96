"""Reads the CSV files that W&B's page exports for a chart of several runs: a column of steps, and the columns `<run> - <metric>`,
`<run> - <metric>__MIN` and `<run> - <metric>__MAX` for each run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from server.importing.delimited import layout_of, read_table
from server.importing.found_run import Advance, FoundRun, Unreadable
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.tables import identity_of, run_of_table

TOOL = "W&B chart"
BETWEEN = " - "
ENVELOPE = ("__MIN", "__MAX")


def _claim(file: Candidate) -> Path | None:
    if file.path.suffix.lower() != ".csv" and b"__MIN" not in file.head:
        return None
    layout = layout_of(file.path)
    return None if layout is None or not _metric_columns(layout.names) else file.path


def _metric_columns(names: list[str]) -> dict[str, dict[str, str]]:
    """The columns of each metric of each run, by their names in the file; none if this is no chart of W&B."""
    plain = [name for name in names[1:] if not name.endswith(ENVELOPE)]
    envelopes = {name for name in names if name.endswith(ENVELOPE)}
    if not plain or not all(BETWEEN in name for name in plain):
        return {}
    if envelopes and envelopes != {name + end for name in plain for end in ENVELOPE}:
        return {}
    if not envelopes and names[0] not in ("Step", "Relative Time (Process)", "Relative Time (Wall)", "Wall Time"):
        return {}
    found: dict[str, dict[str, str]] = {}
    for name in plain:
        run, _, metric = name.rpartition(BETWEEN)
        found.setdefault(run, {})[name] = metric
    return found


def _read(file: Claimed, advance: Advance) -> Iterator[FoundRun]:
    layout = layout_of(file.path)
    if layout is None:
        raise Unreadable(f"{file.path}: it has changed while it was read")
    table, decimals, remarks = read_table(file.path, layout, growing=file.growing)
    left_out = sum(name.endswith(ENVELOPE) for name in table.column_names)
    axis = layout.names[0].strip()
    for name, columns in _metric_columns(layout.names).items():
        part = table.select([axis, *columns]).rename_columns([axis, *columns.values()])
        run = run_of_table(TOOL, file.path, name, part, file.step or (axis if axis == "Step" else None), decimals)
        run.identity = f"{identity_of(file.path, part, decimals)}\0{name}"
        run.group = ""  # the name is one of W&B, and no path
        if axis != "Step" and file.step is None:
            run.remarks.append(f"{file.path}: the chart's axis is {axis!r}, which holds no steps")
        if left_out:
            run.left_out["columns __MIN and __MAX, between which W&B draws a band"] = 2 * len(columns)
        run.remarks += remarks
        remarks = []
        yield run
    advance(file.path.stat().st_size)


IMPORTER = Importer("W&B's exports of charts (CSV)", _claim, _read)
