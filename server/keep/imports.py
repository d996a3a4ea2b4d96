"""Imports the runs of an archive (server.keep.archive), all of them or none. The runs get new ids and are stored as ended runs
with a note of their origin.

There are four passes: compare the digests, check all contents, store the rows, read the stored runs. Only the third pass writes
to the database, in one transaction per run, which decodes nothing. If the import is refused or stopped, the runs that it has
stored are deleted.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from threading import Event
from typing import IO, Any

from sqlalchemy import BigInteger, Column, DefaultClause, String, Table, Text, delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.backup.create import kind_of
from server.database.connection import Database
from server.database.fence import add_transition
from server.database.models import AutopsyRow, BlockRow, Run, Sweep
from server.database.payloads import checksum
from server.keep.archive import PART, ArchiveError, blocks_in, read_json, read_parts, verify
from server.keep.deletion import purge
from server.keep.exports import AUTOPSY_FIELDS, MAX_RUNS, PARTS, RUN_FIELDS, SWEEP_FIELDS, columns_of, table_of
from server.keep.imported_blocks import BlockCheck
from server.keep.imported_reading import read_back
from server.keep.imported_records import (
    Record,
    StoredAlert,
    StoredAutopsy,
    StoredManifest,
    StoredRun,
    StoredSeries,
    StoredTransition,
    check_catalogue,
    check_record,
    check_steps,
)
from server.keep.trash import move_to_trash
from server.lifecycle.autopsy_findings import check_findings
from server.lifecycle.reported import REPORTED, TRAINED
from server.series.last_values import refresh_last_values
from server.series.occupied import recount
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.telemetry.free_json import MAX_DEPTH as MAX_CONFIG_DEPTH
from stablessm_core.telemetry.series import SO_FAR

MAX_TEXT, MAX_DEPTH = 1 << 20, 20
MAX_SECONDS = 1800.0  # an archive of the largest allowed size takes a third of this on a slow disk
ROWS_OF: dict[str, type[Record]] = {"series": StoredSeries, "alerts": StoredAlert, "history": StoredTransition}
Proceed = Callable[[], None]


class ImportStopped(RuntimeError):
    """The import was stopped before its end, and has stored nothing."""


@dataclass
class Imported:
    """The result of an import. runs: (new id, id in the source) of each run."""

    source: str
    runs: list[tuple[int, int]] = field(default_factory=list)
    sweeps: list[int] = field(default_factory=list)


def import_archive(
    database: Database, file: IO[bytes], *, submitted_by: int | None, user_id: int | None, stop: Event | None = None,
    seconds: float = MAX_SECONDS,
) -> Imported:  # fmt: skip
    """Store the runs of an archive. Raises ArchiveError if the archive is invalid or needs more than `seconds`, and ImportStopped
    soon after `stop` is set. In each of these cases nothing stays stored.
    """
    deadline = time.monotonic() + seconds

    def proceed() -> None:
        if stop is not None and stop.is_set():
            raise ImportStopped("the import was stopped")
        if time.monotonic() > deadline:
            raise ArchiveError(f"its import takes more than {seconds:,.0f} s; import fewer runs at once")

    manifest = verify(file, proceed)
    source, sweep_of, sweeps = _checked_manifest(manifest)
    if list(_checked_numbers(file, proceed)) != list(sweep_of):
        raise ArchiveError("its manifest does not list the runs that it holds")
    done = Imported(source)
    new: dict[int, int] = {}  # new id of each sweep
    try:
        for number, described, parts in _runs(file, proceed):
            with database.write() as session:
                if (sweep := sweep_of[number]) is not None and sweep not in new:
                    new[sweep] = _add(session, Sweep(**sweeps[sweep], submitted_by=submitted_by))
                described["run"] |= {"submitted_by": submitted_by, "user_id": user_id, "sweep_id": new.get(sweep or 0)}
                run_id = _store(session, number, described, parts, done.source)
            done.runs.append((run_id, number))
        _name_origins(database, {was: now for now, was in done.runs})
        for run_id, number in done.runs:
            proceed()
            with database.read() as session:
                read_back(session, run_id, number)
        proceed()
    except BaseException as error:
        _take_back(database, [run_id for run_id, _ in done.runs], list(new.values()))
        if isinstance(error, IntegrityError):
            raise ArchiveError("it holds the same record twice") from None
        raise
    done.sweeps = list(new.values())
    return done


def _name_origins(database: Database, here: dict[int, int]) -> None:
    """Set the origin of each fork to the origin's new id, or to None if the archive does not contain the origin."""
    with database.write() as session:
        for run in session.scalars(select(Run).where(Run.id.in_(here.values()), Run.forked_from.is_not(None))):
            run.forked_from = here.get(run.forked_from or 0)


def _take_back(database: Database, runs: Sequence[int], sweeps: Sequence[int]) -> None:
    for run_id in runs:
        with database.write() as session:
            move_to_trash(session, run_id, by="import")
        purge(database, None, run_id)
    with database.write() as session:
        session.execute(delete(Sweep).where(Sweep.id.in_(sweeps)))


def _store(session: Session, number: int, parts: dict[str, Any], blocks: Iterator[tuple[str, bytes]], source: str) -> int:
    values = parts["run"]
    environment = (values["environment"] or {}) | {"imported": {"run": number, "from": source}}
    needs: dict[str, Any] = {}
    if values["kind"] == TRAINED:
        config = parse_config(values["config"])
        device, task = config.train.device, config.task
        needs = {"needs_cuda": device == "cuda", "needs_data": task.data_needed(), "needs_task": task.name}
    run = Run(**values | needs | {"environment": environment})
    run_id = _add(session, run)
    for name, table in PARTS.items():
        if parts[name]:
            session.execute(insert(table_of(table)), [row | {"run_id": run_id} for row in parts[name]])
    if (autopsy := parts["autopsy"]) is not None:
        session.add(AutopsyRow(**autopsy, run_id=run_id, attempt=run.attempt, state="done", seq=max(1, run.seq)))
    for name, data in blocks:
        rows = [row | {"payload": payload, "checksum": checksum(payload, row["attempt"], row["point_count"])}
                for row, payload in _rows_of_blocks(name, data)]  # fmt: skip
        session.execute(insert(table_of(BlockRow)), [row | {"run_id": run_id} for row in rows])
    recount(session, run_id)
    refresh_last_values(session, run_id)
    add_transition(session, run, f"imported: run {number} of {source}")
    return run_id


def _add(session: Session, row: Run | Sweep) -> int:
    session.add(row)
    session.flush()
    return row.id


def _runs(file: IO[bytes], proceed: Proceed) -> Iterator[tuple[int, dict[str, Any], Iterator[tuple[str, bytes]]]]:
    """(id, checked description, parts with blocks) of each run; the parts are read one by one."""
    parts = ((name, data) for name, data in read_parts(file, proceed) if PART.fullmatch(name))
    for number, group in groupby(parts, lambda part: int(part[0].split("/")[1])):
        own = iter(group)
        name, data = next(own)
        if not name.endswith("/run.json"):
            raise ArchiveError(f"{name} comes before the description of its run")
        yield number, _checked_run(number, read_json(name, data)), own


def _checked_numbers(file: IO[bytes], proceed: Proceed) -> Iterator[int]:
    """The id of each run, after its description and its blocks were checked."""
    for number, described, parts in _runs(file, proceed):
        check = BlockCheck(described["series"], described["run"]["seq"], reported=described["run"]["kind"] == REPORTED)
        for name, data in parts:
            for row, payload in _rows_of_blocks(name, data):
                proceed()
                check.check(name, row, payload)
        check.finish(f"run {number}")
        yield number


def _rows_of_blocks(name: str, data: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    for head, payload in blocks_in(name, data):
        yield _row(name, table_of(BlockRow), head, columns_of(BlockRow)), payload


def _checked_manifest(manifest: dict[str, Any]) -> tuple[str, dict[int, int | None], dict[int, dict[str, Any]]]:
    """The source, the sweep of each run by the run's id, and the columns of each sweep."""
    listed = check_record("its manifest", StoredManifest, manifest)
    runs = {run.id: run.sweep for run in listed.runs}
    if not runs or len(runs) > MAX_RUNS:
        raise ArchiveError(f"it holds {len(runs)} runs; allowed: 1 to {MAX_RUNS}")
    sweeps = {sweep["id"]: {name: sweep.get(name) for name in SWEEP_FIELDS} for sweep in manifest["sweeps"]}
    for sweep in runs.values():
        if sweep is not None and sweep not in sweeps:
            raise ArchiveError("a run belongs to a sweep that is not in it")
    rows = {number: _row("a sweep", table_of(Sweep), sweep, SWEEP_FIELDS) for number, sweep in sweeps.items()}
    return listed.source[:200], runs, rows


def _checked_run(number: int, data: Any) -> dict[str, Any]:
    """The columns of the run, and of its series, alerts and history, as they will be stored."""
    where = f"run {number}"
    if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in PARTS):
        raise ArchiveError(f"{where} is not described")
    run = _row(where, table_of(Run), data.get("run"), RUN_FIELDS)
    run |= {name: data["run"].get(name) for name in SO_FAR}
    check_record(where, StoredRun, run)
    run |= {name: None if run[name] is None else float(run[name]) for name in SO_FAR}
    run["config"] = _checked_config(where, run)
    rows: dict[str, list[dict[str, Any]]] = {}
    for name, table in PARTS.items():
        part, columns = f"{where}, {name}", columns_of(table)
        rows[name] = [_row(part, table_of(table), row, columns) for row in data[name]]
        for row in rows[name]:
            check_record(part, ROWS_OF[name], row)
    check_catalogue(f"{where}, series", rows["series"])
    check_steps(where, run, rows)
    for row in (*rows["alerts"], *rows["history"]):
        _check(where, "seq", row["seq"] <= run["seq"], row["seq"])
    return {"run": run, "autopsy": _checked_autopsy(f"{where}, autopsy", data.get("autopsy")), **rows}


def _checked_config(where: str, run: dict[str, Any]) -> dict[str, Any]:
    """The configuration to store: complete, as readers expect; empty for a reported run. An older version may have stored a
    configuration without the newest fields."""
    if run["kind"] == REPORTED:
        _check(where, "config", run["config"] == {}, run["config"])
        return {}
    try:
        return parse_config(run["config"]).model_dump(mode="json")
    except ConfigError as error:
        raise ArchiveError(f"{where} has a configuration that is not possible here: {str(error)[:300]}") from None


def _checked_autopsy(where: str, data: Any) -> dict[str, Any] | None:
    """The columns of an autopsy; None if the run has none, as in archives of older versions."""
    if data is None:
        return None
    row = _row(where, table_of(AutopsyRow), data, AUTOPSY_FIELDS)
    check_record(where, StoredAutopsy, row)
    return row | {"findings": check_findings(row["findings"])}


def _row(where: str, table: Table, data: Any, names: Sequence[str]) -> dict[str, Any]:
    """The named columns of a row, each checked against its column's type. Columns of newer versions are left out."""
    if not isinstance(data, dict):
        raise ArchiveError(f"{where} is not a record")
    row: dict[str, Any] = {}
    for name in names:
        column, value = table.c[name], data.get(name)
        if value is None and name not in data and isinstance(column.server_default, DefaultClause):
            if kind_of(column) == "text":  # rows of one insert statement must have the same columns
                row[name] = str(column.server_default.arg)
            continue
        _check(where, name, _fits(column, value), value)
        row[name] = value
    return row


def _fits(column: Column[Any], value: Any) -> bool:
    if value is None:
        return bool(column.nullable)
    holds: dict[str, Callable[[], bool]] = {
        "int": lambda: type(value) is int and -1 <= value < (2**63 if isinstance(column.type, BigInteger) else 2**31),
        "float": lambda: type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e15,
        "bool": lambda: type(value) is bool,
        "json": lambda: _is_plain(value, 0, MAX_CONFIG_DEPTH if column.name == "reported_config" else MAX_DEPTH),
        "text": lambda: type(value) is str and len(value) <= _longest(column) and _is_plain(value),
    }
    return holds[kind_of(column)]()


def _longest(column: Column[Any]) -> int:
    return column.type.length or MAX_TEXT if isinstance(column.type, String | Text) else MAX_TEXT


def _is_plain(value: Any, depth: int = 0, deepest: int = MAX_DEPTH) -> bool:
    """True if both database engines can store this JSON value: no NUL, no lone surrogate, no huge number, no deep nesting."""
    if depth > deepest:
        return False
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not any(c == "\0" or 0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_plain(key, depth, deepest) and _is_plain(one, depth + 1, deepest) for key, one in value.items())
    if isinstance(value, list):
        return all(_is_plain(one, depth + 1, deepest) for one in value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)


def _check(where: str, name: str, fits: bool, value: Any) -> None:
    if not fits:
        raise ArchiveError(f"{where}: {name} cannot be {repr(value)[:80]}")
