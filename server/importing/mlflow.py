"""Reads MLflow's stores: its SQLite database, and the folders of its older file store.

A run's folder in a file store has a `meta.yaml`, a file for each metric in `metrics/` with lines of `time value step`, and a file
for each parameter in `params/` and tag in `tags/`. The database has the tables runs, metrics, params and tags. It cannot keep all
numbers: a NaN has is_nan = 1, and an infinity is the largest float, which becomes infinite again here.
"""

from __future__ import annotations

import json
import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from server.importing.found_run import Advance, FoundRun, Unreadable
from server.importing.sqlite import DAMAGE, opened

TOOL = "MLflow"
DATABASE = {"runs": {"run_uuid", "status"}, "metrics": {"key", "value", "step", "run_uuid", "is_nan"}}
META = "meta.yaml"  # of a run's folder
STATUSES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "cancelled"}
NUMBERED = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}  # in a meta.yaml
LARGEST = sys.float_info.max
LONGEST_TAG = 50  # characters


def recognizes_database(tables: dict[str, set[str]]) -> bool:
    """True if the database with these columns is MLflow's."""
    return all(names <= tables.get(table, set()) for table, names in DATABASE.items())


def recognizes_run(head: bytes) -> bool:
    """True if the file is the `meta.yaml` of a run."""
    keys = {line.partition(b":")[0] for line in head.splitlines()}
    return {b"artifact_uri", b"lifecycle_stage", b"status"} <= keys and bool({b"run_id", b"run_uuid"} & keys)


def read_database(path: Path, advance: Advance) -> Iterator[FoundRun]:
    """The runs in a database that are not deleted, oldest first."""
    size = path.stat().st_size
    try:
        with opened(path) as connection:
            rows = connection.execute("SELECT * FROM runs ORDER BY start_time").fetchall()
            for row in rows:
                meta = dict(row)
                if meta.get("lifecycle_stage") != "deleted":
                    yield _run_of_database(connection, meta, path)
                advance(size // len(rows))
    except DAMAGE as error:
        raise Unreadable(f"{path}: its table of runs cannot be read ({error})") from None


def _run_of_database(connection: sqlite3.Connection, meta: dict[str, Any], path: Path) -> FoundRun:
    run = FoundRun(TOOL, str(meta["run_uuid"]), str(meta.get("name") or ""))
    _describe(run, meta)
    try:
        metrics = "SELECT key, value, step, is_nan FROM metrics WHERE run_uuid = ? ORDER BY timestamp"
        for key, value, step, is_nan in connection.execute(metrics, (meta["run_uuid"],)):
            number = math.nan if is_nan or value is None else float(value)
            run.add(str(key), int(step), math.copysign(math.inf, number) if abs(number) == LARGEST else number)
        for table, add in (("params", _add_parameter), ("tags", _add_tag)):
            chosen = f"SELECT key, value FROM {table} WHERE run_uuid = ? ORDER BY key"  # noqa: S608 - a name of ours
            for key, value in connection.execute(chosen, (meta["run_uuid"],)):
                add(run, str(key), str(value))
    except (*DAMAGE, ValueError, TypeError) as error:
        run.remarks.append(f"{path}: run {meta['run_uuid']} is damaged ({error}); it is read up to there")
    return run


def read_folder(meta_file: Path, advance: Advance) -> FoundRun:
    """The run in the folder of this `meta.yaml`."""
    meta: dict[str, Any] = {}
    for line in meta_file.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        meta[key.strip()] = value.strip().strip("'\"")
    identity = meta.get("run_id") or meta.get("run_uuid") or meta_file.parent.name
    run = FoundRun(TOOL, identity, "" if meta.get("run_name") in (None, "null") else meta["run_name"])
    meta["status"] = NUMBERED.get(meta.get("status", ""), meta.get("status"))
    _describe(run, meta)
    for name, path in _files(meta_file.parent / "metrics"):
        _add_metric(run, name, path)
        advance(path.stat().st_size)
    for folder, add in (("params", _add_parameter), ("tags", _add_tag)):
        for name, path in _files(meta_file.parent / folder):
            add(run, name, path.read_text(errors="replace"))
    return run


def _files(folder: Path) -> list[tuple[str, Path]]:
    """The files below the folder, each with the name that MLflow gives it: a name with slashes lies in folders."""
    return [(path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file()]


def _add_metric(run: FoundRun, name: str, path: Path) -> None:
    for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
        try:
            _time, value, step = line.split()[:3]
            run.add(name, int(step), float(value))
        except ValueError:
            run.remarks.append(f"{path}: line {number:,} is damaged; the file is read up to there")
            return


def _describe(run: FoundRun, meta: dict[str, Any]) -> None:
    status = str(meta.get("status"))
    run.status = STATUSES.get(status, "finished")
    if status not in STATUSES:
        run.reason = f"MLflow says {status}"
    with suppress(ValueError, TypeError):
        run.started_at = float(meta["start_time"]) / 1000 if meta.get("start_time") else None


def _add_parameter(run: FoundRun, name: str, value: str) -> None:
    """Add a parameter, which MLflow keeps as text; a number becomes a number again, so that filters can compare it."""
    try:
        found = json.loads(value)
        run.config[name] = found if isinstance(found, int | float) else value
    except (ValueError, RecursionError):
        run.config[name] = value


def _add_tag(run: FoundRun, name: str, value: str) -> None:
    if name == "mlflow.note.content":
        run.notes = value
    elif name == "mlflow.runName":
        run.name = run.name or value
    elif not name.startswith("mlflow."):
        tag = f"{name}={value}" if value else name
        if len(tag) <= LONGEST_TAG and tag.isprintable():
            run.tags.append(tag)
        else:
            run.config[f"tags.{name}"] = value
