"""`stablessm backup`: writes a consistent copy of the whole installation into one file while the service runs.

Rows come from one snapshot (REPEATABLE READ on PostgreSQL, a read transaction on SQLite's WAL), which blocks no writer and sees
no half-written run. The backup uses its own format rather than `pg_dump` or SQLite's backup API. A backup can therefore be
restored into either engine, needs no client program that matches the server's version, and contains checkpoints and logs
together with the rows that refer to them.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sqlalchemy import (
    Boolean,
    Column,
    Connection,
    Float,
    Integer,
    LargeBinary,
    Table,
    Text,
    cast,
    func,
    select,
    text,
    type_coerce,
)
from sqlalchemy.exc import DBAPIError, ProgrammingError
from sqlalchemy.types import JSON

from server.backup.archive import ArchiveWriter, BackupError, Manifest, TableInfo
from server.backup.rows import Row
from server.database.connection import Database
from server.database.models import Base, BlockRow, CheckpointRow, Run
from server.database.payloads import DamagedPayload, verify
from server.database.revision import check, newest_revision, parse_revision
from stablessm_core import __version__

MARK = "last-backup"
FETCH_ROWS = 500
SAY_SECONDS = 1.0
RIGHTS = " (a backup must be able to read every table: use the owner's STABLESSM_DATABASE_URL)"

Say = Callable[[str], None]


def backup(database: Database, data_dir: Path, target: Path, say: Say) -> tuple[Path, Manifest]:
    """Write a backup to the file `target`, or to a new file in the folder `target`. Returns the file and its manifest.

    The file gets its final name only when it is complete and on disk. The time of the empty file MARK in the data directory is
    the time of the last backup. Raises BackupError, SchemaMismatch.
    """
    if target.is_dir():
        target = target / time.strftime("stablessm-%Y%m%d-%H%M%S.backup", time.gmtime())
    if target.exists():
        raise BackupError(f"{target} already exists; a backup never replaces a file")
    draft = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            manifest = _write(database, data_dir, file, say)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, target)
        _sync_folder(target.parent)
        with contextlib.suppress(OSError):  # a backup may only read the data directory
            if data_dir.is_dir():
                (data_dir / MARK).touch(0o600)
    except OSError as error:
        place = error.filename or target
        raise BackupError(f"no backup was written: {place}: {error.strerror or error}") from None
    except DBAPIError as error:
        raise BackupError(f"no backup was written: the database: {_reason(error)}") from None
    finally:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
    return target, manifest


def _reason(error: DBAPIError) -> str:
    text = str(error.orig).partition("\n")[0][:300]
    return text + RIGHTS if isinstance(error, ProgrammingError) else text


def _write(database: Database, data_dir: Path, file: IO[bytes], say: Say) -> Manifest:
    with database.read() as session:
        connection = session.connection()
        if database.dialect == "postgresql":
            for timeout in ("statement_timeout", "idle_in_transaction_session_timeout"):
                connection.execute(text(f"SET LOCAL {timeout} = 0"))
        schema = check(connection)
        if parse_revision(schema)[0] != newest_revision():
            raise BackupError(
                f"the database's schema {schema} is newer than this program ({newest_revision():04d}): "
                "back up with the newer version"
            )
        manifest = Manifest(schema, database.dialect, __version__, time.time())
        writer = ArchiveWriter(file, manifest)
        _files(connection, data_dir, writer, say)
        for table in Base.metadata.sorted_tables:
            info = TableInfo(table.name, [(column.name, kind_of(column)) for column in table.c], _sequence(connection, table))
            last = time.monotonic()
            damaged: list[str] = []
            for count in writer.table(info, _rows(connection, table, damaged)):
                if time.monotonic() - last > SAY_SECONDS:
                    last = time.monotonic()
                    say(f"{table.name}: {count:,} rows so far")
            say(f"{table.name}: {manifest.tables[-1].rows:,} rows")
            if damaged:
                say(f"warning: {len(damaged):,} payloads are damaged; the backup has them unchanged: {'; '.join(damaged[:3])}")
        writer.close()
    return manifest


def kind_of(column: Column[object]) -> str:
    kinds = {JSON: "json", Boolean: "bool", LargeBinary: "bytes", Float: "float", Integer: "int"}
    return next((name for kind, name in kinds.items() if isinstance(column.type, kind)), "text")


def _rows(connection: Connection, table: Table, damaged: list[str]) -> Iterator[Row]:
    as_text = cast if connection.dialect.name == "postgresql" else type_coerce
    columns = [as_text(c, Text).label(c.name) if kind_of(c) == "json" else c for c in table.c]
    statement = select(*columns).order_by(*table.primary_key).execution_options(yield_per=FETCH_ROWS)
    for row in connection.execute(statement):
        if table is BlockRow.__table__:
            try:
                verify(row)
            except DamagedPayload as damage:
                damaged.append(damage.message)
        yield tuple(row)


def _sequence(connection: Connection, table: Table) -> int | None:
    """The last id that the database assigned, including the ids of deleted rows; None for a table without assigned ids."""
    if "id" not in table.c or kind_of(table.c.id) != "int":
        return None
    highest = connection.scalar(select(func.max(table.c.id))) or 0
    if connection.dialect.name == "postgresql":
        name = connection.scalar(select(func.pg_get_serial_sequence(table.name, "id")))
        name = name.decode() if isinstance(name, bytes) else name
        last, used = connection.execute(text(f"SELECT last_value, is_called FROM {name}")).one()  # noqa: S608 - no user input
        return max(int(highest), int(last) if used else 0)
    known = connection.scalar(text("SELECT seq FROM sqlite_sequence WHERE name = :name"), {"name": table.name})
    return max(int(highest), int(known or 0))


def _files(connection: Connection, data_dir: Path, writer: ArchiveWriter, say: Say) -> None:
    """Add the checkpoint files and logs of the snapshot's runs, if they are on this machine."""
    chosen = select(CheckpointRow.path, CheckpointRow.sha256, CheckpointRow.stored_at).order_by(CheckpointRow.path)
    recorded = connection.execute(chosen).all()
    absent = writer.manifest.absent
    with _held(data_dir, [path for path, *_ in recorded]) as held:
        for path, sha256, stored_at in recorded:
            here = (place := held.get(path)) is not None and _copy(writer, path, place) == sha256
            if not here and stored_at is None:  # files with `stored_at` are in the store
                absent.append(path)
        for run_id in connection.scalars(select(Run.id).order_by(Run.id)).all():
            log = f"runs/{run_id}/log.txt"
            if (data_dir / log).is_file():
                _copy(writer, log, data_dir / log)
    say(f"files: {sum(part.name.startswith('files/') for part in writer.manifest.parts):,}")
    if absent:
        what = f"{len(absent):,} checkpoints are missing, unreadable or damaged on this machine, such as {absent[0]}"
        say(f"warning: {what}; their runs would resume from an earlier step")


@contextmanager
def _held(data_dir: Path, paths: list[str]) -> Iterator[dict[str, Path]]:
    """Hard links to these files, keyed by path. The links keep the contents, because a training process may remove its old
    checkpoints at any time."""
    folder = data_dir / f".backup-{os.getpid()}"
    held: dict[str, Path] = {}
    try:
        for number, path in enumerate(paths):
            source = (data_dir / path).resolve()
            if not source.is_relative_to(data_dir.resolve() / "runs") or not source.is_file():
                continue
            try:
                folder.mkdir(exist_ok=True)
                os.link(source, folder / str(number))
                held[path] = folder / str(number)
            except FileNotFoundError:
                continue
            except OSError:
                held[path] = source  # the file system has no hard links, or is read-only
        yield held
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _copy(writer: ArchiveWriter, path: str, place: Path) -> str | None:
    try:
        with place.open("rb") as content:
            return writer.file(path, content, os.fstat(content.fileno()).st_size)  # a log may grow during the copy
    except (FileNotFoundError, PermissionError):
        return None


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
