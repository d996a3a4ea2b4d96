"""Reads trackio's SQLite databases: the table `metrics` has a JSON object for each step, in which the numbers that JSON lacks are
the texts "NaN", "Infinity" and "-Infinity". The table `configs` has the configuration of each run."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from server.importing.found_run import Advance, FoundRun, Unreadable, parse_json
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.sqlite import DAMAGE, columns_of, opened

TOOL = "trackio"


def read_database(path: Path, advance: Advance) -> Iterator[FoundRun]:
    """The runs in a database, in the order of their first row."""
    size = path.stat().st_size
    try:
        with opened(path) as connection:
            # newer versions tell runs of one name apart by an id
            key = "run_id" if "run_id" in columns_of(connection, "metrics") else "run_name"
            # SQLite takes the other columns from the row of the minimum
            first = f"SELECT {key}, min(id), run_name, timestamp FROM metrics GROUP BY {key} ORDER BY min(id)"  # noqa: S608 - ours
            rows = connection.execute(first).fetchall()
            for value, _, name, began in rows:
                run = FoundRun(TOOL, f"{path.stem}\0{value}\0{began}", str(name))
                run.saw(_seconds(began))
                _add_rows(run, connection, key, value, path)
                yield run
                advance(size // len(rows))
    except DAMAGE as error:
        raise Unreadable(f"{path}: its runs cannot be read ({error})") from None


def _add_rows(run: FoundRun, connection: sqlite3.Connection, key: str, value: Any, path: Path) -> None:
    rows = 0
    try:
        chosen = f"SELECT step, metrics, timestamp FROM metrics WHERE {key} IS ? ORDER BY id"  # noqa: S608 - a name of ours
        for step, logged, at in connection.execute(chosen, (value,)):
            for metric, number in _object(logged).items():
                run.add_json(metric, int(step), number)
            run.saw(_seconds(at))
            rows += 1
        if key in columns_of(connection, "configs"):
            for (config,) in connection.execute(f"SELECT config FROM configs WHERE {key} IS ?", (value,)):  # noqa: S608 - ours
                run.config = {k: v for k, v in _object(config).items() if not k.startswith("_")}
    except (*DAMAGE, ValueError, TypeError) as error:
        run.remarks.append(f"{path}: run {run.name!r} is damaged after {rows:,} rows ({error}); it is read up to there")


def _object(text: Any) -> dict[str, Any]:
    found = parse_json(text)
    if not isinstance(found, dict):
        raise ValueError(f"{str(text)[:40]!r} is no JSON object")
    return found


def _seconds(written: Any) -> float | None:
    with suppress(ValueError, TypeError):
        return datetime.fromisoformat(written).timestamp()
    return None


def _claim(file: Candidate) -> Path | None:
    return file.path if {"run_name", "step", "metrics"} <= file.tables.get("metrics", set()) else None


def _read(files: Claimed, advance: Advance) -> Iterator[FoundRun]:
    return read_database(files.path, advance)


IMPORTER = Importer("trackio's SQLite databases", _claim, _read)
