from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, event, inspect, text

import migrations
from migrations.loss import DataLoss
from server.database.connection import Database
from server.database.models import Base
from server.database.revision import SchemaMismatch, newest_revision, parse_revision
from tests.server.filled import checksums, columns_of, fill
from tests.server.old_code import submitted_by_old_code
from tests.server.recording import claimed, run_of, submitted

pytestmark = [pytest.mark.spread, pytest.mark.both_engines, pytest.mark.long]

_CONFIG = Config()
_CONFIG.set_main_option("script_location", str(Path(migrations.__file__).parent))
REVISIONS = [script.revision for script in ScriptDirectory.from_config(_CONFIG).walk_revisions()][::-1]


def test_the_migrations_make_exactly_the_tables_of_the_models(database: Database) -> None:
    with database.engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": False})
        # SQLAlchemy cannot reflect SQLite indexes over expressions; they are tested below and in test_queues
        with warnings.catch_warnings(action="ignore"):
            differences = [d for d in compare_metadata(context, Base.metadata) if not re.search("ix_runs_(queue|next)", str(d))]
    assert differences == []


def test_the_query_for_the_next_queued_run_uses_the_queue_index(sqlite: Database) -> None:
    query = "SELECT id FROM runs WHERE status = :status ORDER BY priority DESC, id LIMIT 1"
    with sqlite.read() as session:
        plan = " ".join(str(row) for row in session.execute(text(f"EXPLAIN QUERY PLAN {query}"), {"status": "queued"}))
    assert "ix_runs_queue" in plan
    assert "TEMP B-TREE" not in plan


def test_every_upgrade_and_downgrade_keeps_every_value_that_both_schemas_store(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.migrate("0001")
    fill(database)
    known = {"0001": (columns_of(database), checksums(database))}
    for revision in REVISIONS[1:]:
        database.migrate(revision)
        for columns, sums in known.values():
            assert checksums(database, columns) == sums, revision
        known[revision] = columns_of(database), checksums(database)
    # Fill all tables and columns of the newest schema. Each downgrade then loses only what the older schema cannot store.
    with database.engine.begin() as connection:
        for table in reversed(Base.metadata.sorted_tables):
            connection.execute(table.delete())
    fill(database)
    full = checksums(database)
    for revision in reversed(REVISIONS[:-1]):
        database.migrate(revision, lose=True)
        columns, sums = columns_of(database), checksums(database)
        database.migrate()
        assert checksums(database, columns) == sums, revision
        assert [name for name in sums if sums[name] == full[name]], revision
        database.migrate(revision, lose=True)
        assert checksums(database) == sums, revision
    assert (columns_of(database), checksums(database)) == known["0001"]
    database.migrate()
    assert set(inspect(database.engine).get_table_names()) == {"alembic_version", *Base.metadata.tables}
    database.migrate("base", lose=True)
    assert set(inspect(database.engine).get_table_names()) == {"alembic_version"}
    database.close()


def test_no_run_id_is_assigned_twice_across_migrations(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.migrate("0001")
    first = submitted_by_old_code(database)
    with database.engine.begin() as connection:
        connection.execute(text("DELETE FROM runs"))
    for revision in [*REVISIONS[1:], *reversed(REVISIONS[:-1]), "head"]:
        database.migrate(revision, lose=True)
        next_id = submitted_by_old_code(database)
        assert next_id > first, revision
        first = next_id
    if database.path:
        with database.engine.connect() as connection:
            sql = connection.scalar(text("SELECT sql FROM sqlite_master WHERE name = 'runs'"))
            index = connection.scalar(text("SELECT sql FROM sqlite_master WHERE name = 'ix_runs_queue'"))
        assert "AUTOINCREMENT" in sql
        assert "priority DESC" in index
    database.close()


# For each revision after 0007, newest first: the values that a downgrade would lose, and their tables and columns.
LOST = (
    (
        r"2 of notifications \(true\); 2 of silences \(true\); 1 of webhooks \(format <> 'json'\)",
        ("notifications", "silences", "webhooks"),
    ),
    (r"1 of runs \(kind <> 'trained'", ("runs.kind", "runs.project")),
    (r"2 of autopsies \(true", ("autopsies",)),
    (
        r"2 of rungs \(true\); 2 of searches \(true\); 1 of sweeps \(idempotency_key IS NOT NULL",
        ("rungs", "searches", "sweeps.idempotency_key"),
    ),
    (r"3 of checkpoints \(stored_at IS NOT NULL", ("checkpoints.stored_at",)),
    (r"1 of sweeps \(name IS NOT NULL", ("sweeps.name", "sweeps.submitted_by")),
    (r"7 of run_logs \(true\); 7 of tracebacks \(true\); 3 of transitions \(", ("run_logs", "tracebacks", "transitions.worker")),
    (r"1 of runs \(deleted_at IS NOT NULL\); 1 of deleted_runs \(true\)", ("runs.deleted_at", "deleted_runs")),
    (
        r"2 of users \(true\); 1 of tokens .*; 1 of audit .*; 3 of runs \(user_id IS NOT NULL OR",
        ("users", "tokens", "audit", "runs.user_id", "runs.gpu_name"),
    ),
    (r"3 of series \(form IS NOT NULL\); 3 of runs \(forms IS NOT NULL\)", ("series.form", "runs.forms")),
)

NOT_REPORTED = {"kind": "trained", "project": ""}  # values of columns that are never null


@pytest.mark.parametrize("revision", ["0003", "0002", "0001", "base"])
def test_a_downgrade_that_would_lose_values_is_refused_and_names_them(database: Database, revision: str) -> None:
    fill(database)
    for lost, emptied in LOST:
        before = checksums(database)
        with pytest.raises(DataLoss, match=f"would lose values: {lost}"):
            database.migrate(revision)
        assert checksums(database) == before
        with database.engine.begin() as connection:
            for place in emptied:
                name, _, column = place.partition(".")
                table = Base.metadata.tables[name]
                connection.execute(table.update().values({column: NOT_REPORTED.get(column)}) if column else table.delete())
    with pytest.raises(DataLoss, match=r"would lose values: 1 of ended_sessions"):
        database.migrate(revision)
    with database.engine.begin() as connection:
        connection.execute(Base.metadata.tables["ended_sessions"].delete())
    before = checksums(database)
    with pytest.raises(DataLoss, match=r"would lose values: 3 of runs \(compacted_at"):
        database.migrate(revision)
    assert checksums(database) == before
    assert database.check_schema() == REVISIONS[-1]


def test_a_downgrade_that_loses_no_value_is_allowed(database: Database) -> None:
    submitted(database)
    database.migrate("0001")
    database.migrate()


@pytest.mark.parametrize("statement", ["ADD COLUMN submitted_by", "CREATE TABLE webhooks", "ADD COLUMN compacted_at"])
def test_a_failed_migration_leaves_the_database_unchanged(empty_database_url: str, statement: str) -> None:
    database = Database(empty_database_url)
    database.migrate("0001")
    fill(database)
    before = columns_of(database), checksums(database)

    def fail(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if statement in " ".join(sql.split()):
            raise OSError("no space left on device")

    event.listen(Engine, "before_cursor_execute", fail)
    try:
        with pytest.raises(OSError, match="no space"):
            database.migrate()
    finally:
        event.remove(Engine, "before_cursor_execute", fail)
    assert (columns_of(database), checksums(database)) == before
    with pytest.raises(SchemaMismatch, match="is 0001"):
        database.check_schema()
    database.migrate()
    database.close()


def test_an_incompatible_schema_is_reported_with_a_clear_message(database: Database) -> None:
    def is_now(revision: str) -> None:
        with database.engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = :name"), {"name": revision})

    is_now("9998")  # a newer schema that is compatible with this code
    assert database.check_schema() == "9998"
    database.migrate()  # has nothing to do
    is_now("9999_from_9998")
    for refused in (database.check_schema, database.migrate):
        with pytest.raises(SchemaMismatch, match="install the newer version"):
            refused()
    is_now("something else")
    with pytest.raises(SchemaMismatch, match="not a schema of StableSSM"):
        database.check_schema()
    is_now("0002")
    with pytest.raises(SchemaMismatch, match=f"needs {newest_revision():04d}: run `stablessm migrate`"):
        database.check_schema()


def test_revisions_are_numbered_without_gaps_and_their_oldest_supported_schema_never_decreases() -> None:
    parsed = [parse_revision(revision) for revision in REVISIONS]
    assert [number for number, _ in parsed] == list(range(1, newest_revision() + 1))
    oldest = [oldest for _, oldest in parsed]
    assert oldest == sorted(oldest)


def test_a_server_does_not_start_on_a_schema_that_is_too_old(empty_sqlite_url: str, tmp_path: Path) -> None:
    database = Database(empty_sqlite_url)
    database.migrate("0001")
    database.close()
    command = [sys.executable, "-m", "server", "serve", "--database-url", empty_sqlite_url, "--data-dir", str(tmp_path / "d")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"Error: the database's schema is 0001, but this version of StableSSM needs {newest_revision():04d}: "
        "run `stablessm migrate`"
    )


def test_several_processes_can_migrate_at_the_same_time_from_any_directory(empty_database_url: str, tmp_path: Path) -> None:
    program = "import sys; from server.database.connection import Database; Database(sys.argv[1]).migrate()"
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    processes = [
        subprocess.Popen([sys.executable, "-c", program, empty_database_url], cwd=tmp_path, env=environment) for _ in range(2)
    ]
    assert [p.wait(200) for p in processes] == [0, 0]
    database = Database(empty_database_url)
    assert set(inspect(database.engine).get_table_names()) == {"alembic_version", *Base.metadata.tables}
    database.close()


def test_a_migration_waits_without_time_limit_for_an_open_write_transaction(
    empty_sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.database.connection.BUSY_SECONDS", 0.05)
    database = Database(empty_sqlite_url)
    database.migrate("0001")
    failures: list[Exception] = []

    def migrate() -> None:
        try:
            database.migrate()
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    with database.engine.begin():  # takes SQLite's only write lock
        migrating = threading.Thread(target=migrate)
        migrating.start()
        migrating.join(1.0)
        assert migrating.is_alive()
    migrating.join()
    assert failures == []
    assert database.check_schema() == REVISIONS[-1]
    database.close()


def test_postgresql_does_not_compress_payloads_again(postgres_url: str) -> None:
    database = Database(postgres_url)
    query = "SELECT attstorage FROM pg_attribute WHERE attrelid = 'blocks'::regclass AND attname = 'payload'"
    with database.read() as session:
        assert session.scalar(text(query)) in ("e", b"e")
    database.close()


def test_the_folder_of_a_new_database_is_created(tmp_path: Path) -> None:
    database = Database(f"sqlite:///{tmp_path}/new/folder/x.db")
    database.migrate()
    run = claimed(database)
    assert run_of(database, run.run_id).status == "running"
    database.close()
