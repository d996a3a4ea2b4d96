from __future__ import annotations

import math
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import select, text, update
from sqlalchemy.exc import DBAPIError

from server.database.connection import Database
from server.database.models import Run
from stablessm_core.telemetry.nonfinite import json_safe
from tests.server.recording import run_of, submitted

pytestmark = pytest.mark.both_engines


def test_a_failed_transaction_is_rolled_back_completely(database: Database) -> None:
    def half() -> None:
        with database.write() as session:
            session.execute(text("INSERT INTO sweeps (base, grid, created_at) VALUES ('{}', '{}', 0)"))
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        half()
    with database.read() as session:
        assert session.scalar(text("SELECT count(*) FROM sweeps")) == 0


def test_a_read_sees_one_snapshot_while_others_write(database: Database) -> None:
    run_id = submitted(database)
    with database.read() as reader:
        before = reader.scalar(select(Run.step))
        with database.write() as session:
            session.execute(update(Run).values(step=77))
        assert reader.scalar(select(Run.step).where(Run.id == run_id)) == before == 0
    assert run_of(database, run_id).step == 77


def test_a_write_in_a_read_transaction_is_refused(database: Database) -> None:
    submitted(database)
    with pytest.raises(DBAPIError), database.read() as session:
        session.execute(update(Run).values(step=1))


@pytest.mark.slow
def test_concurrent_read_modify_write_transactions_lose_no_update(database: Database) -> None:
    run_id = submitted(database)

    def add(times: int) -> None:
        for _ in range(times):
            with database.write() as session:
                run = session.scalars(select(Run).with_for_update()).one()
                run.step = run.step + 1

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(add, [50] * 4))
    assert run_of(database, run_id).step == 200


def test_a_second_writer_waits_for_the_first_instead_of_failing(sqlite: Database) -> None:
    run_id = submitted(sqlite)
    inside, errors = threading.Event(), []

    def other() -> None:
        inside.wait()
        try:
            with sqlite.write() as session:
                session.execute(update(Run).values(priority=Run.priority + 1))
        except DBAPIError as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    with sqlite.write() as session:
        session.execute(update(Run).values(step=1))
        inside.set()
        time.sleep(0.5)
    thread.join()
    assert not errors
    assert run_of(sqlite, run_id).priority == 1


def test_sqlite_uses_wal_full_synchronisation_and_foreign_keys(sqlite: Database) -> None:
    with sqlite.write() as session:
        pragmas = {name: session.scalar(text(f"PRAGMA {name}")) for name in ("journal_mode", "synchronous", "foreign_keys")}
    assert pragmas == {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1}


def test_a_transaction_takes_no_lock_before_its_first_statement(sqlite: Database) -> None:
    path = sqlite.path
    assert path is not None
    with sqlite.write() as session:
        with sqlite3.connect(path, timeout=0) as other:
            other.execute("UPDATE runs SET step = 0")
        session.execute(text("SELECT 1"))
        with pytest.raises(sqlite3.OperationalError, match="locked"), sqlite3.connect(path, timeout=0) as other:
            other.execute("UPDATE runs SET step = 0")


def test_non_finite_numbers_survive_in_json_columns(database: Database) -> None:
    run_id = submitted(database)
    given = {"loss": math.nan, "deep": [math.inf, {"x": -math.inf}], "fine": 0.1 + 0.2, "text": "NaN", "unicode": "Ж"}
    with database.write() as session:
        session.execute(update(Run).values(result=given))
    assert run_of(database, run_id).result == json_safe(given)
    assert json_safe(given) == {
        "loss": "NaN", "deep": ["Infinity", {"x": "-Infinity"}], "fine": 0.1 + 0.2, "text": "NaN", "unicode": "Ж"
    }  # fmt: skip


def test_postgresql_ends_transactions_that_stay_idle(postgres_url: str) -> None:
    database = Database(postgres_url)
    with database.read() as session:
        limit = session.scalar(text("SHOW idle_in_transaction_session_timeout"))
    database.close()
    assert limit == "15s"


def test_a_path_that_cannot_hold_a_database_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "not-a-database.db"
    folder.mkdir()
    with pytest.raises(DBAPIError):
        Database(f"sqlite:///{folder}").migrate()


@pytest.mark.slow
def test_several_connections_can_open_a_new_database_file_at_the_same_time(tmp_path: Path) -> None:
    def open_new(path: Path, together: threading.Barrier) -> int:
        database = Database(f"sqlite:///{path}")
        together.wait()
        with database.write() as session:
            answer = session.scalar(text("SELECT 1"))
        database.close()
        return int(answer or 0)

    with ThreadPoolExecutor(8) as pool:
        for i in range(40):
            together = threading.Barrier(8)
            assert list(pool.map(open_new, [tmp_path / f"{i}.db"] * 8, [together] * 8)) == [1] * 8


def test_connections_that_the_database_server_closed_are_replaced(postgres_url: str) -> None:
    database = Database(postgres_url)
    end = "SELECT pg_terminate_backend(pid, 30000) FROM pg_stat_activity WHERE datname = current_database() AND pid <> %s"
    for session_of in (database.read, database.read_autocommit, database.write):
        with session_of() as session:
            assert session.scalar(text("SELECT 1")) == 1
        with psycopg.connect(postgres_url.replace("+psycopg", "")) as other:
            assert other.execute(end, [other.info.backend_pid]).fetchall()
        with session_of() as session:
            assert session.scalar(text("SELECT 1")) == 1
    database.close()


def test_each_autocommit_query_sees_the_newest_data(postgres_url: str) -> None:
    database = Database(postgres_url)
    run_id = submitted(database)
    with database.read_autocommit() as session:
        assert session.scalar(select(Run.step).where(Run.id == run_id)) == 0
        with database.write() as writer:
            writer.execute(update(Run).values(step=77))
        assert session.scalar(select(Run.step).where(Run.id == run_id)) == 77
    database.close()


def test_a_new_sqlite_file_has_large_pages_and_an_older_file_keeps_its_small_ones(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "old.db").execute("CREATE TABLE old (x)").connection.close()
    for name, expected in (("new.db", 16_384), ("old.db", 4096)):
        database = Database(f"sqlite:///{tmp_path / name}")
        database.migrate()
        submitted(database)
        with database.read() as session:
            assert session.scalar(text("PRAGMA page_size")) == expected
        database.close()
