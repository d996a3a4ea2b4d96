"""The database, SQLite or PostgreSQL. `read()` sees one consistent snapshot; `write()` is one transaction."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Any

from psycopg.pq import Format
from sqlalchemy import Engine, NullPool, create_engine, event, make_url, text
from sqlalchemy.exc import DisconnectionError
from sqlalchemy.orm import Session, sessionmaker

from server.database.revision import check, revision_of
from server.settings import make_private, normalize_url
from stablessm_core.telemetry.nonfinite import json_safe

BUSY_SECONDS = 10.0
MIGRATION_SECONDS = 300.0  # maximum wait for another migration, in seconds; a large database takes long to migrate
# A process that is suspended inside a transaction must not lock a run's row forever: server.lifecycle.lost_runs needs the row.
POSTGRES_OPTIONS = "-c statement_timeout=30s -c lock_timeout=10s -c idle_in_transaction_session_timeout=15s"
MIGRATION_LOCK = 0x57AB1E55
PAGE_BYTES = 16_384  # SQLite stores a block of a megabyte in a quarter of the writes that its default of 4,096 needs


class Database:
    """One database. A session's transaction begins with its first statement, so code before this statement holds no lock."""

    def __init__(self, url: str) -> None:
        self.url = normalize_url(url)
        self.dialect = "sqlite" if self.url.startswith("sqlite") else "postgresql"
        if self.dialect == "sqlite":
            self.engine = writer = _sqlite_engine(self.url, "BEGIN IMMEDIATE")
            self._reader = autocommit = _sqlite_engine(self.url, "BEGIN", read_only=True)
        else:
            self.engine = _postgres_engine(self.url)
            writer = self.engine.execution_options(binary_results=True)
            self._reader = writer.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            autocommit = writer.execution_options(isolation_level="AUTOCOMMIT")
        self._write_session = sessionmaker(writer, expire_on_commit=False)
        self._read_session = sessionmaker(self._reader, expire_on_commit=False)
        self._autocommit_session = sessionmaker(autocommit, expire_on_commit=False)

    @property
    def path(self) -> Path | None:
        """The file of a SQLite database; None for PostgreSQL."""
        name = make_url(self.url).database
        return Path(name) if self.dialect == "sqlite" and name else None

    @contextmanager
    def read(self) -> Iterator[Session]:
        """A session that sees one snapshot. The database refuses writes."""
        with self._read_session() as session:
            yield session

    @contextmanager
    def read_autocommit(self) -> Iterator[Session]:
        """A read-only session without a transaction. Each query sees the newest data, so two queries may disagree.

        On PostgreSQL this saves the two messages that begin and end a transaction.
        """
        with self._autocommit_session() as session:
            yield session

    @contextmanager
    def write(self) -> Iterator[Session]:
        """A session with one transaction: committed at the end, rolled back after an exception. Keep the transaction short,
        because SQLite allows one writer at a time."""
        with self._write_session.begin() as session:
            yield session

    def migrate(self, revision: str = "head", *, lose: bool = False) -> tuple[str | None, str | None]:
        """Migrate the schema to `revision` in one transaction. Returns the revisions before and after; None for an empty
        database. Several processes may call this method at the same time.

        Raises migrations.loss.DataLoss if `revision` is older than the current schema and cannot store existing values, unless
        `lose` is True.
        """
        from alembic import command  # imported late to save start-up time: only a migration needs Alembic
        from alembic.config import Config

        if (path := self.path) is not None:
            make_private(path.parent)
        # Alembic rebuilds SQLite tables to change them. With foreign keys enforced, dropping a table deletes child rows.
        engine = _sqlite_engine(self.url, "BEGIN IMMEDIATE", migrating=True) if path else self.engine
        config = Config()
        config.set_main_option("script_location", str(files("migrations")).replace("%", "%%"))
        with engine.begin() as connection:
            if not path:
                connection.execute(text("SET LOCAL statement_timeout = 0"))
                connection.execute(text("SET LOCAL lock_timeout = 0"))
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
            config.attributes.update(connection=connection, lose=lose)
            current = connection.dialect.has_table(connection, "alembic_version") and connection.scalar(
                text("SELECT version_num FROM alembic_version")
            )
            if not current or _knows(config, current):
                move = command.downgrade if _is_older(config, revision, current or None) else command.upgrade
                move(config, revision)
            else:
                check(connection)  # the database is newer than this code; raises if they are incompatible
            if path and (orphans := connection.exec_driver_sql("PRAGMA foreign_key_check").fetchall()):
                raise RuntimeError(f"the migration to {revision} would leave {len(orphans)} rows without their parent row")
            after = revision_of(connection)
        if path:
            engine.dispose()
        return current or None, after

    def check_schema(self) -> str:
        """The schema's revision. Raises SchemaMismatch if this code cannot work with the schema."""
        with self.read() as session:
            return check(session.connection())

    def close(self) -> None:
        self.engine.dispose()
        self._reader.dispose()


def _dump_json(value: Any) -> str:
    return json.dumps(json_safe(value), allow_nan=False, separators=(",", ":"), ensure_ascii=False)


def _sqlite_engine(url: str, begin: str, *, read_only: bool = False, migrating: bool = False) -> Engine:
    pool: dict[str, Any] = {"poolclass": NullPool} if migrating else {"pool_size": 8, "max_overflow": 56}
    patience = MIGRATION_SECONDS if migrating else BUSY_SECONDS
    engine = create_engine(
        url, json_serializer=_dump_json, connect_args={"timeout": patience, "check_same_thread": False}, **pool
    )

    @event.listens_for(engine, "do_connect")
    def keep_private(*_: Any) -> None:
        # SQLite would create the file with the umask's permissions; -wal and -shm get the permissions of the file
        with contextlib.suppress(OSError):  # the file already exists, or its folder does not exist
            os.close(os.open(str(make_url(url).database), os.O_CREAT | os.O_EXCL, 0o600))

    @event.listens_for(engine, "connect")
    def configure(connection: Any, _record: Any) -> None:
        # pysqlite begins transactions late and deferred, which can lose updates, so this module executes BEGIN itself.
        connection.isolation_level = None
        connection.create_function("lower", 1, _lower, deterministic=True)  # SQLite's lower() supports only ASCII letters
        connection.execute(f"PRAGMA page_size={PAGE_BYTES}")  # of a new file
        mode = _journal_in_wal(connection, patience)
        if mode != "wal":
            raise RuntimeError(f"SQLite journal mode is {mode!r}; WAL is needed (is {url} on a network file system?)")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA foreign_keys={'OFF' if migrating else 'ON'}")
        if read_only:
            connection.execute("PRAGMA query_only=ON")

    @event.listens_for(engine, "begin")
    def start(connection: Any) -> None:
        connection.exec_driver_sql(begin)

    return engine


def _journal_in_wal(connection: Any, patience: float) -> str:
    """Set the journal mode to WAL and return the resulting mode. If two processes set the mode at the same time, SQLite refuses
    one of them immediately, so this function retries."""
    deadline = time.monotonic() + patience
    while True:
        try:
            return str(connection.execute("PRAGMA journal_mode=WAL").fetchone()[0])
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def _postgres_engine(url: str) -> Engine:
    engine = create_engine(
        url,
        json_serializer=_dump_json,
        pool_size=8,
        max_overflow=24,
        connect_args={
            "connect_timeout": 5,
            "keepalives_idle": 5,
            "keepalives_interval": 3,
            "keepalives_count": 3,
            "tcp_user_timeout": 10_000,
            "application_name": "stablessm",
            "options": POSTGRES_OPTIONS,
        },
    )

    @event.listens_for(engine, "checkout")
    def replace_if_ended(connection: Any, *_: Any) -> None:
        # The server sends bytes to an idle connection only to close it. Checking for such bytes sends no message, unlike
        # `pool_pre_ping`. A connection that is lost without such bytes is detected only when its next statement fails.
        if connection.closed or _has_input(connection.fileno()):
            raise DisconnectionError("the server has closed this connection")  # the pool opens another connection

    @event.listens_for(engine, "before_cursor_execute")
    def ask_for_binary(connection: Any, cursor: Any, *_: Any) -> None:
        # Text results need two bytes per payload byte and an extra decoding step. Binary results break SQLAlchemy's reflection,
        # so only callers that request binary results get them.
        if connection.get_execution_options().get("binary_results"):
            cursor.format = Format.BINARY

    return engine


def _has_input(fd: int) -> bool:
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(0))


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value


def _knows(config: Any, revision: str) -> bool:
    from alembic.script import ScriptDirectory

    return revision in {s.revision for s in ScriptDirectory.from_config(config).walk_revisions()}


def _is_older(config: Any, revision: str, current: str | None) -> bool:
    from alembic.script import ScriptDirectory

    if current is None or revision in ("head", "heads", current):
        return False
    if revision == "base":
        return True
    script = ScriptDirectory.from_config(config)
    return revision in {s.revision for s in script.iterate_revisions(current, "base")}
