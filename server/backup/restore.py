"""`stablessm restore`: restores a backup into an empty installation, on either database engine, completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.util import CommandError
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Float,
    LargeBinary,
    MetaData,
    Table,
    Text,
    bindparam,
    cast,
    func,
    insert,
    inspect,
    select,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.exc import DataError, IntegrityError, InterfaceError, OperationalError, ProgrammingError, StatementError
from sqlalchemy.types import TypeEngine

from server.backup.archive import (
    PART_BYTES,
    BackupError,
    Manifest,
    TableInfo,
    check_count,
    members,
    rows_of,
    table_of,
    verify,
)
from server.backup.rows import Row
from server.backup.sealed_tar import CHUNK_BYTES
from server.database.connection import Database
from server.database.revision import newest_revision, parse_revision
from server.settings import make_private

KINDS: dict[str, TypeEngine[Any]] = {
    "int": BigInteger(),
    "float": Float(53),
    "bool": Boolean(),
    "text": Text(),
    "json": Text(),
    "bytes": LargeBinary(),
}

BATCH_ROWS = 2000

Say = Callable[[str], None]


def restore(database: Database, data_dir: Path, source: Path, say: Say) -> Manifest:
    """Restore a backup, then migrate it to this program's schema. Raises BackupError; the target is then unchanged.

    Rows are inserted in one transaction. Files are written to a temporary folder, which is renamed just before the commit.
    """
    manifest = verify(source)
    if parse_revision(manifest.schema)[0] > newest_revision():
        raise BackupError(
            f"{source} has schema {manifest.schema}, newer than this program ({newest_revision():04d}): install the newer version"
        )
    say(f"{source} is undamaged: {len(manifest.parts):,} parts, {sum(part.bytes for part in manifest.parts):,} bytes")
    runs = data_dir / "runs"
    if runs.exists() and any(runs.iterdir()):
        raise BackupError(f"{runs} is not empty; restore into a new data directory")
    with _new_schema(database, manifest.schema):
        draft = data_dir / f".runs-restoring-{os.getpid()}"
        try:
            make_private(data_dir)
            draft.mkdir()
            with database.write() as session:
                connection = session.connection()
                _fill(connection, manifest, source, draft, say)
                if runs.exists():
                    runs.rmdir()
                os.rename(draft, runs)
        except BaseException:
            if not draft.exists():  # the folder was renamed, but the commit failed
                shutil.rmtree(runs, ignore_errors=True)
            raise
        finally:
            shutil.rmtree(draft, ignore_errors=True)
    database.migrate()
    return manifest


@contextmanager
def _new_schema(database: Database, schema: str) -> Iterator[None]:
    """Create the empty tables of this schema. If the `with` block fails, the tables are removed again."""
    new_file = database.path is not None and not database.path.exists()
    had = set() if new_file else _tables(database)
    if had:
        database.migrate("base")  # `_tables` has checked that the existing tables are empty
    try:
        try:
            database.migrate(schema)
        except CommandError:
            raise BackupError(f"the backup is damaged: no version of StableSSM has a schema {schema[:60]!r}") from None
        yield
    except BaseException:
        database.migrate("base", lose=True)
        if had:
            database.migrate()
        database.close()
        if new_file and database.path is not None:
            for suffix in ("", "-wal", "-shm"):
                database.path.with_name(database.path.name + suffix).unlink(missing_ok=True)
        raise


def _tables(database: Database) -> set[str]:
    """The names of the existing tables. Raises BackupError if one of them has rows."""
    with database.engine.connect() as connection:
        names = set(inspect(connection).get_table_names()) - {"alembic_version", "sqlite_sequence"}
        for name in sorted(names):
            quoted = connection.dialect.identifier_preparer.quote(name)
            if connection.scalar(text(f"SELECT EXISTS (SELECT 1 FROM {quoted})")):  # noqa: S608 - no user input
                raise BackupError(f"the database is not empty: table {name} has rows; restore into a new database")
    return names


def _fill(connection: Connection, manifest: Manifest, source: Path, runs: Path, say: Say) -> None:
    if connection.dialect.name == "postgresql":
        for timeout in ("statement_timeout", "idle_in_transaction_session_timeout"):
            connection.execute(text(f"SET LOCAL {timeout} = 0"))
    counted = dict.fromkeys((info.name for info in manifest.tables), 0)
    known = set(inspect(connection).get_table_names()) - {"alembic_version", "sqlite_sequence"}
    for info in manifest.tables:
        if info.name not in known or not {kind for _, kind in info.columns} <= KINDS.keys():
            raise BackupError(f"{source} is damaged: schema {manifest.schema} has no table {info.name[:100]!r}")
    for name, content in members(source):
        if name.startswith("tables/"):
            info = table_of(source, name, manifest)
            for rows in _batches(rows_of(source, name, content, info)):
                counted[info.name] += len(rows)
                _store(connection, info, rows, source)
            say(f"{info.name}: {counted[info.name]:,} of {info.rows:,} rows")
        elif name.startswith("files/runs/"):
            _write_file(runs / name.removeprefix("files/runs/"), content)
    for info in manifest.tables:
        check_count(source, info, counted[info.name])
        if info.sequence:
            _continue_after(connection, info.name, info.sequence)


def _batches(rows: Iterator[Row]) -> Iterator[list[Row]]:
    """Batches of rows: up to PART_BYTES of text and binary values, or BATCH_ROWS rows."""
    batch: list[Row] = []
    size = 0
    for row in rows:
        batch.append(row)
        size += sum(len(value) for value in row if isinstance(value, bytes | str))
        if size >= PART_BYTES or len(batch) >= BATCH_ROWS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _store(connection: Connection, info: TableInfo, rows: list[Row], source: Path) -> None:
    columns = [column for column, _ in info.columns]
    try:
        connection.execute(_insert(connection, info), [dict(zip(columns, row, strict=True)) for row in rows])
    except (DataError, IntegrityError, ProgrammingError, InterfaceError, StatementError, OverflowError) as error:
        if isinstance(error, OperationalError):
            raise
        reason = str(error).partition("\n")[0][:200]
        raise BackupError(f"{source} is damaged: table {info.name} cannot hold its rows: {reason}") from None


def _insert(connection: Connection, info: TableInfo) -> Any:
    table = Table(info.name, MetaData(), *(Column(name, KINDS[kind]) for name, kind in info.columns))
    if connection.dialect.name == "sqlite":
        return insert(table)
    as_json = {name: cast(bindparam(name, type_=Text()), JSONB) for name, kind in info.columns if kind == "json"}
    return insert(table).values(as_json | {name: bindparam(name) for name, kind in info.columns if kind != "json"})


def _continue_after(connection: Connection, table: str, last: int) -> None:
    """Make the table's next id larger than `last`, so that no id is assigned twice."""
    if connection.dialect.name == "postgresql":
        connection.execute(select(func.setval(func.pg_get_serial_sequence(table, "id"), last)))
        return
    sql = connection.scalar(text("SELECT sql FROM sqlite_master WHERE name = :table"), {"table": table})
    if "AUTOINCREMENT" in str(sql):
        connection.execute(text("DELETE FROM sqlite_sequence WHERE name = :table"), {"table": table})
        connection.execute(text("INSERT INTO sqlite_sequence (name, seq) VALUES (:table, :last)"), {"table": table, "last": last})


def _write_file(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        shutil.copyfileobj(content, file, CHUNK_BYTES)
        file.flush()
        os.fsync(file.fileno())
