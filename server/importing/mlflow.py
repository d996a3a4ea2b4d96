"""Reads MLflow's stores: its SQLite database, and the folders of its older file store.

A run's folder in a file store has a `meta.yaml`, a file for each metric in `metrics/` with lines of `time value step`, and a file
for each parameter in `params/` and tag in `tags/`. The database has the tables runs, metrics, params and tags. It cannot keep all
numbers: a NaN has is_nan = 1, and an infinity is the largest float, which becomes infinite again here.
"""

from __future__ import annotations

import math
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from server.importing.found_run import Advance, FoundRun, Unreadable, parse_json
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.sqlite import DAMAGE, opened

TOOL = "MLflow"
DATABASE = {"runs": {"run_uuid", "status"}, "metrics": {"key", "value", "step", "run_uuid", "is_nan"}}
PARENT = "mlflow.parentRunId"
META = "meta.yaml"  # of a run's folder
STATUSES = {"FINISHED": "finished", "FAILED": "failed", "KILLED": "cancelled"}
NUMBERED = {"1": "RUNNING", "2": "SCHEDULED", "3": "FINISHED", "4": "FAILED", "5": "KILLED"}  # in a meta.yaml
LARGEST = sys.float_info.max
LONGEST_TAG = 50  # characters


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
        # of several values at one step, MLflow shows the one with the largest time, then the largest one
        metrics = "SELECT key, value, step, is_nan, timestamp FROM metrics WHERE run_uuid = ? ORDER BY timestamp, value"
        for key, value, step, is_nan, at in connection.execute(metrics, (meta["run_uuid"],)):
            number = math.nan if is_nan or value is None else float(value)
            run.add(str(key), int(step), math.copysign(math.inf, number) if abs(number) == LARGEST else number)
            run.saw(_seconds(at))
        for table, add in (("params", _add_parameter), ("tags", _add_tag)):
            chosen = f"SELECT key, value FROM {table} WHERE run_uuid = ? ORDER BY key"  # noqa: S608 - a name of ours
            for key, value in connection.execute(chosen, (meta["run_uuid"],)):
                add(run, str(key), str(value))
    except (*DAMAGE, ValueError, TypeError) as error:
        run.remarks.append(f"{path}: run {meta['run_uuid']} is damaged ({error}); it is read up to there")
    return run


def read_folder(meta_file: Path, advance: Advance, *, growing: bool = False) -> FoundRun:
    """The run in the folder of this `meta.yaml`. growing: a last line that is not whole yet is no damage."""
    meta: dict[str, Any] = {}
    for line in meta_file.read_text(errors="replace").splitlines():
        key, _, value = line.partition(":")
        meta[key.strip()] = value.strip().strip("'\"")
    identity = meta.get("run_id") or meta.get("run_uuid") or meta_file.parent.name
    run = FoundRun(TOOL, identity, "" if meta.get("run_name") in (None, "null") else meta["run_name"])
    meta["status"] = NUMBERED.get(meta.get("status", ""), meta.get("status"))
    _describe(run, meta)
    for name, path in _files(meta_file.parent / "metrics"):
        _add_metric(run, name, path, growing=growing)
        advance(path.stat().st_size)
    for folder, add in (("params", _add_parameter), ("tags", _add_tag)):
        for name, path in _files(meta_file.parent / folder):
            add(run, name, path.read_text(errors="replace"))
    return run


def _files(folder: Path) -> list[tuple[str, Path]]:
    """The files below the folder, each with the name that MLflow gives it: a name with slashes lies in folders."""
    return [(path.relative_to(folder).as_posix(), path) for path in sorted(folder.rglob("*")) if path.is_file()]


def _add_metric(run: FoundRun, name: str, path: Path, *, growing: bool) -> None:
    rows = []
    lines = path.read_text(errors="replace").split("\n")
    for count, line in enumerate(lines, 1):
        if not line or (count == len(lines) and growing):  # the program still writes the last line
            continue
        try:
            at, number, place = line.split()[:3]
            rows.append((int(at), float(number), int(place)))
        except ValueError:
            run.remarks.append(f"{path}: line {count:,} is damaged; the file is read up to there")
            break
    for time, value, step in sorted(rows, key=lambda row: (row[0], 0.0 if math.isnan(row[1]) else row[1])):
        run.add(name, step, value)
        run.saw(time / 1000)


def _describe(run: FoundRun, meta: dict[str, Any]) -> None:
    status = str(meta.get("status"))
    run.status = STATUSES.get(status, "finished")
    run.running = status == "RUNNING"
    if status not in STATUSES:
        run.reason = f"MLflow says {status}"
    for name in ("start_time", "end_time"):
        run.saw(_seconds(meta.get(name)))


def _seconds(milliseconds: Any) -> float | None:
    with suppress(ValueError, TypeError, OverflowError):
        return float(milliseconds) / 1000 if milliseconds else None
    return None


def _add_parameter(run: FoundRun, name: str, value: str) -> None:
    """Add a parameter, which MLflow keeps as text; a number becomes a number again, so that filters can compare it."""
    try:
        found = parse_json(value)
        run.config[name] = found if isinstance(found, int | float) else value
    except (ValueError, RecursionError):
        run.config[name] = value


def _add_tag(run: FoundRun, name: str, value: str) -> None:
    if name == "mlflow.note.content":
        run.notes = value
    elif name == "mlflow.runName":
        run.name = run.name or value
    elif name == PARENT:
        run.tags.append(f"parent:{value}"[:LONGEST_TAG])
    elif not name.startswith("mlflow."):
        tag = f"{name}={value}" if value else name
        if len(tag) <= LONGEST_TAG and tag.isprintable():
            run.tags.append(tag)
        else:
            run.config[f"tags.{name}"] = value


def _claim_database(file: Candidate) -> Path | None:
    return file.path if all(names <= file.tables.get(table, set()) for table, names in DATABASE.items()) else None


def _claim_run(file: Candidate) -> Path | None:
    """The folder of the run, if the file is the `meta.yaml` of a run."""
    keys = {line.partition(b":")[0] for line in file.head.splitlines()}
    described = {b"artifact_uri", b"lifecycle_stage", b"status"} <= keys and bool({b"run_id", b"run_uuid"} & keys)
    return file.path.parent if described else None


def _read_database(files: Claimed, advance: Advance) -> Iterator[FoundRun]:
    return read_database(files.path, advance)


def _read_folder(files: Claimed, advance: Advance) -> Iterator[FoundRun]:
    yield read_folder(files.path, advance, growing=files.growing)


IMPORTERS = (
    Importer("MLflow's SQLite databases", _claim_database, _read_database),
    Importer("run folders of MLflow", _claim_run, _read_folder, whole_folder=True),
)
