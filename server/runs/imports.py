"""Runs out of an archive (server.runs.archive) under new numbers, as ended runs that say where they came from: all or none.

Three passes: digests, then everything checked, then the rows. A run is stored in one transaction, in which every series is read
once: what this server could not show is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby, starmap
from typing import IO, Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import BigInteger, Column, String, Table, Text, delete, insert, select
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from server.backup.create import kind_of
from server.database.connection import Database
from server.database.fence import add_transition
from server.database.models import FINAL, STATUSES, Base, BlockRow, Run, Sweep
from server.database.payloads import checksum
from server.runs.archive import PART, ArchiveError, blocks_in, read_json, read_parts, verify
from server.runs.deletion import purge
from server.runs.exports import MAX_RUNS, PARTS, RUN_FIELDS, SWEEP_FIELDS, columns_of
from server.runs.trash import move_to_trash
from server.series.occupied import recount
from server.series.reading import Layout, read_series
from stablessm_core.config import ConfigError, Tag, parse_config
from stablessm_core.nonfinite import NONFINITE
from stablessm_core.telemetry.blocks import LEVELS, STATS, decode
from stablessm_core.telemetry.series import SO_FAR

MAX_TEXT, MAX_DEPTH = 1 << 20, 20
MAX_STEP = 10_000_000  # of any configuration
TAGS = TypeAdapter(list[Tag])


@dataclass
class Imported:
    """`runs`: (number here, number where it came from)."""

    source: str
    runs: list[tuple[int, int]] = field(default_factory=list)
    sweeps: list[int] = field(default_factory=list)


def import_archive(database: Database, file: IO[bytes], *, submitted_by: int | None, user_id: int | None) -> Imported:
    """Store the runs of an archive. Raises ArchiveError that says what is wrong with it; nothing is stored then."""
    manifest = verify(file)
    sweep_of, sweeps = _checked_manifest(manifest)
    if list(_checked_numbers(file)) != list(sweep_of):
        raise ArchiveError("its manifest lists other runs than those in it")
    done = Imported(str(manifest.get("source", ""))[:200])
    new: dict[int, int] = {}  # numbers of the sweeps here
    try:
        for number, described, blocks in _runs(file):
            with database.write() as session:
                if (sweep := sweep_of[number]) is not None and sweep not in new:
                    new[sweep] = _add(session, Sweep(**sweeps[sweep], submitted_by=submitted_by))
                described["run"] |= {"submitted_by": submitted_by, "user_id": user_id, "sweep_id": new.get(sweep or 0)}
                run_id = _store(session, number, described, blocks, done.source)
            done.runs.append((run_id, number))
        _name_origins(database, {was: now for now, was in done.runs})
    except BaseException as error:
        _take_back(database, [run_id for run_id, _ in done.runs], list(new.values()))
        if isinstance(error, IntegrityError):
            raise ArchiveError("it holds the same record twice") from None
        raise
    done.sweeps = list(new.values())
    return done


def _name_origins(database: Database, here: dict[int, int]) -> None:
    """Forks name the run that they began from by its number here; a run that did not come along has none."""
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


def _store(session: Session, number: int, parts: dict[str, Any], blocks: Iterator[list[dict[str, Any]]], source: str) -> int:
    values = parts["run"]
    config = parse_config(values["config"])
    environment = (values["environment"] or {}) | {"imported": {"run": number, "from": source}}
    needs = {"needs_cuda": config.train.device == "cuda", "needs_data": config.task.data_needed(), "needs_task": config.task.name}
    run = Run(**values | needs | {"environment": environment})
    run_id = _add(session, run)
    for name, table in PARTS.items():
        if parts[name]:
            session.execute(insert(_table(table)), [row | {"run_id": run_id} for row in parts[name]])
    for rows in blocks:
        session.execute(insert(_table(BlockRow)), [row | {"run_id": run_id} for row in rows])
    recount(session, run_id)
    add_transition(session, run, f"imported: run {number} of {source}")
    try:
        layout = Layout(session, run_id)
        for name, series in layout.series.items():  # the outermost columns: all of a wide one would not be bounded
            read_series(session, run_id, name, eigenvalues=sorted({0, series.width - 1}), layout=layout)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise ArchiveError(f"a series of run {number} cannot be read: {str(error)[:200]}") from None
    return run_id


def _add(session: Session, row: Run | Sweep) -> int:
    session.add(row)
    session.flush()
    return row.id


def _runs(file: IO[bytes]) -> Iterator[tuple[int, dict[str, Any], Iterator[list[dict[str, Any]]]]]:
    """Number, description and blocks of each run, the blocks part by part."""
    parts = ((name, data) for name, data in read_parts(file) if PART.fullmatch(name))
    for number, group in groupby(parts, lambda part: int(part[0].split("/")[1])):
        own = iter(group)
        name, data = next(own)
        if not name.endswith("/run.json"):
            raise ArchiveError(f"{name} comes before the description of its run")
        described = _checked_run(number, read_json(name, data))
        yield number, described, starmap(partial(_checked_blocks, _columns(described["series"])), own)


def _checked_numbers(file: IO[bytes]) -> Iterator[int]:
    for number, _, blocks in _runs(file):
        for _ in blocks:
            pass  # each is looked at as it is read
        yield number


def _checked_manifest(manifest: dict[str, Any]) -> tuple[dict[int, int | None], dict[int, dict[str, Any]]]:
    """The sweep of each run by the run's number, and the sweeps."""
    try:
        runs = {run["id"]: run["sweep"] for run in manifest["runs"]}
        sweeps = {sweep["id"]: {name: sweep.get(name) for name in SWEEP_FIELDS} for sweep in manifest["sweeps"]}
    except (KeyError, TypeError, AttributeError):
        raise ArchiveError("its manifest does not list runs and sweeps") from None
    if not runs or len(runs) > MAX_RUNS:
        raise ArchiveError(f"it holds {len(runs)} runs; allowed are 1 to {MAX_RUNS}")
    for sweep in runs.values():
        if sweep is not None and sweep not in sweeps:
            raise ArchiveError("a run belongs to a sweep that is not in it")
    return runs, {number: _row("a sweep", _table(Sweep), sweep, SWEEP_FIELDS) for number, sweep in sweeps.items()}


def _checked_run(number: int, data: Any) -> dict[str, Any]:
    where = f"run {number}"
    if not isinstance(data, dict) or not all(isinstance(data.get(name), list) for name in PARTS):
        raise ArchiveError(f"{where} is not described")
    run = _row(where, _table(Run), data.get("run"), RUN_FIELDS)
    for name in SO_FAR:
        value = data["run"].get(name)
        _check(where, name, value is None or type(value) in (int, float) or value in NONFINITE, value)
        run[name] = None if value is None else float(value)
    try:
        TAGS.validate_python(run["tags"], strict=True)
        parse_config(run["config"])
    except (ValidationError, ConfigError) as error:
        raise ArchiveError(f"{where} has a configuration that is not possible here: {str(error)[:300]}") from None
    _check(where, "status", run["status"] in FINAL, run["status"])
    _check(where, "finished_at", run["finished_at"] is not None, None)
    _check(where, "result", _is_result(run["result"]), run["result"])
    _check(where, "divergence", run["divergence"] is None or isinstance(run["divergence"], dict), run["divergence"])
    _check(where, "fork_changes", run["fork_changes"] is None or isinstance(run["fork_changes"], dict), run["fork_changes"])
    _check(where, "forked_at_step", run["forked_from"] is None or run["forked_at_step"] is not None, run["forked_at_step"])
    _check(where, "environment", run["environment"] is None or isinstance(run["environment"], dict), run["environment"])
    forms = [*(run["forms"] or []), *(one.get("form") for one in data["series"] if isinstance(one, dict) and one.get("form"))]
    _check(where, "forms", all(isinstance(form, dict) and {"map", "time"} <= form.keys() for form in forms), forms[:1])
    rows = {
        name: [_row(f"{where}, {name}", _table(table), row, columns_of(table)) for row in data[name]]
        for name, table in PARTS.items()
    }
    for row in rows["series"]:
        _check(where, "width", 0 < row["width"] <= 1 << 20 and 0 <= row["column_offset"] <= 1 << 26, row["width"])
    for row in rows["alerts"]:
        _check(where, "severity", row["severity"] in ("warning", "critical"), row["severity"])
    for row in rows["history"]:
        _check(where, "status", row["status"] in STATUSES and row["seq"] <= run["seq"], row["status"])
    return {"run": run, **rows}


def _columns(series: Sequence[dict[str, Any]]) -> dict[tuple[str, bool], int]:
    """How many columns a group's blocks have at least, raw ones (True) and coarse ones, which hold derived series too."""
    least: dict[tuple[str, bool], int] = {}
    for row in series:
        for raw in (False,) if row["derived"] else (False, True):
            key = row["group_name"], raw
            least[key] = max(least.get(key, 0), row["column_offset"] + row["width"])
    return least


def _checked_blocks(least: dict[tuple[str, bool], int], name: str, data: bytes) -> list[dict[str, Any]]:
    rows = []
    for head, payload in blocks_in(name, data):
        row = _row(name, _table(BlockRow), head, columns_of(BlockRow))
        count, columns, first, last = row["point_count"], row["column_count"], row["first_step"], row["last_step"]
        _check(name, "level", 0 <= row["level"] <= LEVELS, row["level"])
        _check(name, "stride", 1 <= row["stride"] <= MAX_STEP, row["stride"])
        _check(name, "first_step", 0 <= first <= last <= MAX_STEP, first)
        _check(name, "point_count", 0 < count <= last - first + 1, count)
        _check(name, "column_count", columns >= max(1, least.get((row["group_name"], row["level"] == 0), 1)), columns)
        try:
            decode(payload, (columns, count) if row["level"] == 0 else (columns, len(STATS), count))
        except ValueError as error:
            raise ArchiveError(f"{name}: {error}") from None
        rows.append(row | {"payload": payload, "checksum": checksum(payload, row["attempt"], count)})
    return rows


def _row(where: str, table: Table, data: Any, names: Sequence[str]) -> dict[str, Any]:
    """The named columns of a row, each as its column can hold it. What a newer version wrote beside them is left out."""
    if not isinstance(data, dict):
        raise ArchiveError(f"{where} is no record")
    row = {}
    for name in names:
        column, value = table.c[name], data.get(name)
        if value is None and name not in data and column.server_default is not None:
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
        "json": lambda: _is_plain(value),
        "text": lambda: type(value) is str and len(value) <= _longest(column) and _is_plain(value),
    }
    return holds[kind_of(column)]()


def _longest(column: Column[Any]) -> int:
    return column.type.length or MAX_TEXT if isinstance(column.type, String | Text) else MAX_TEXT


def _is_plain(value: Any, depth: int = 0) -> bool:
    """Whether both engines keep this JSON value: no NUL or half characters, no number out of range, not nested without end."""
    if depth > MAX_DEPTH:
        return False
    if isinstance(value, str):
        return len(value) <= MAX_TEXT and not any(c == "\0" or 0xD800 <= ord(c) <= 0xDFFF for c in value)
    if isinstance(value, float):
        return math.isfinite(value)
    if isinstance(value, dict):
        return all(_is_plain(key, depth + 1) and _is_plain(one, depth + 1) for key, one in value.items())
    if isinstance(value, list):
        return all(_is_plain(one, depth + 1) for one in value)
    return value is None or isinstance(value, bool) or (isinstance(value, int) and abs(value) < 2**63)


def _is_result(result: Any) -> bool:
    return result is None or (
        isinstance(result, dict)
        and all(type(value) in (int, float, bool, type(None)) or value in NONFINITE for value in result.values())
    )


def _check(where: str, name: str, fits: bool, value: Any) -> None:
    if not fits:
        raise ArchiveError(f"{where}: {name} cannot be {repr(value)[:80]}")


def _table(table: type[Base]) -> Table:
    assert isinstance(table.__table__, Table)
    return table.__table__
