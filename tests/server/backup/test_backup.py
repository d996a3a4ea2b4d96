"""A backup of either engine contains everything, and a damaged backup is detected before anything is restored."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event, func, inspect, select, text, update

from server.backup.archive import ArchiveWriter, BackupError, Manifest, members, rows_of, verify, verify_rows
from server.backup.create import MARK, backup
from server.backup.restore import restore
from server.backup.rows import decode_rows, encode_row
from server.cli.main import main
from server.database.connection import Database
from server.database.models import BlockRow, CheckpointRow, Run
from server.database.revision import SchemaMismatch
from server.series.recording import store_checkpoint
from stablessm_core.telemetry.statuses import STATUSES
from tests.server.filled import HOSTILE, checksums, columns_of, fill
from tests.server.recording import Recording, claimed, submitted

pytestmark = [pytest.mark.spread, pytest.mark.both_engines, pytest.mark.long]

TOKEN = "the-secret-token-of-this-server"


@pytest.fixture
def filled(database: Database, data_dir: Path) -> Database:
    """Fills every table and creates the checkpoint and log files of its rows; one checkpoint is missing, one is damaged."""
    fill(database)
    (data_dir / "runs").mkdir(parents=True)
    (data_dir / "token").write_text(TOKEN)
    with database.write() as session:
        for number, row in enumerate(session.scalars(select(CheckpointRow).order_by(CheckpointRow.run_id)).all()):
            content = os.urandom(3_000_000 if number == 0 else 100)
            row.sha256 = hashlib.sha256(content).hexdigest()
            if number == 4:
                continue
            place = data_dir / row.path
            place.parent.mkdir(parents=True)
            place.write_bytes(content if number != 5 else content[:-1] + b"x")
            (place.parents[1] / "log.txt").write_text(HOSTILE)
    return database


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """The target of a restore: an empty database of either engine, independent of `database`."""
    url = f"sqlite:///{tmp_path}/restored/new.db" if request.param == "sqlite" else request.getfixturevalue("empty_postgres_url")
    database = Database(url)
    yield database
    database.close()


def made(database: Database, data_dir: Path, tmp_path: Path) -> tuple[Path, Manifest]:
    return backup(database, data_dir, tmp_path / "one.backup", lambda _: None)


def nothing(_: str) -> None:
    pass


def tables_of(database: Database) -> set[str]:
    if database.path is not None and not database.path.exists():
        return set()
    with database.engine.connect() as connection:
        return set(inspect(connection).get_table_names()) - {"alembic_version", "sqlite_sequence"}


def test_a_backup_restores_every_value_and_file_on_either_database_engine(
    filled: Database, data_dir: Path, target: Database, tmp_path: Path
) -> None:
    said: list[str] = []
    file, manifest = backup(filled, data_dir, tmp_path / "one.backup", said.append)
    assert f"blocks: {3 * len(STATUSES)} rows" in said
    assert file.stat().st_mode & 0o777 == 0o600
    # Three checkpoints are missing on this machine, but two of them are in the checkpoint store.
    assert len(manifest.absent) == 1
    assert verify(file) == manifest
    verify_rows(file, manifest)
    restore(target, tmp_path / "elsewhere", file, nothing)
    assert checksums(target) == checksums(filled)
    kept = {path.relative_to(data_dir): path.read_bytes() for path in (data_dir / "runs").rglob("*") if path.is_file()}
    back = {
        path.relative_to(tmp_path / "elsewhere"): path.read_bytes()
        for path in (tmp_path / "elsewhere").rglob("*")
        if path.is_file()
    }
    assert back == kept
    assert sorted(path.name for path in data_dir.iterdir() if path.name != "stablessm.db") == [MARK, "runs", "token"]


def test_sql_null_and_json_null_stay_different(database: Database, target: Database, tmp_path: Path) -> None:
    run_id = submitted(database)
    null = "'null'" if database.path else "'null'::jsonb"
    with database.engine.begin() as connection:
        connection.execute(text(f"UPDATE runs SET result = {null}, divergence = NULL WHERE id = {run_id}"))
    file, _ = made(database, tmp_path, tmp_path)
    restore(target, tmp_path / "elsewhere", file, nothing)
    with target.engine.connect() as connection:
        assert connection.execute(text("SELECT result IS NULL, divergence IS NULL FROM runs")).one() == (False, True)


def test_run_ids_continue_after_a_restore(database: Database, target: Database, tmp_path: Path) -> None:
    ids = [submitted(database) for _ in range(5)]
    with database.engine.begin() as connection:
        connection.execute(text("DELETE FROM runs WHERE id >= :id"), {"id": ids[-2]})
    file, _ = made(database, tmp_path, tmp_path)
    restore(target, tmp_path / "elsewhere", file, nothing)
    assert submitted(target) == ids[-1] + 1


def test_an_empty_installation_can_be_backed_up_and_restored(database: Database, target: Database, tmp_path: Path) -> None:
    file, manifest = made(database, tmp_path, tmp_path)
    assert manifest.parts == []
    restore(target, tmp_path / "elsewhere", file, nothing)
    assert submitted(target) == 1


def test_a_backup_made_while_runs_are_written_is_a_consistent_snapshot(
    database: Database, target: Database, tmp_path: Path
) -> None:
    recording = Recording(database, claimed(database))
    stop, wrote, failures = threading.Event(), threading.Event(), []

    def write() -> None:
        try:
            while not stop.is_set():
                recording.write(16)
                wrote.set()
        except Exception as error:  # noqa: BLE001 - looked at below
            failures.append(error)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        for number in range(3):
            wrote.clear()
            assert wrote.wait(100)
            file, _ = backup(database, tmp_path, tmp_path / f"{number}.backup", nothing)
    finally:
        stop.set()
        thread.join()
    assert failures == []
    restore(target, tmp_path / "elsewhere", file, nothing)
    with target.read() as session:
        run = session.scalars(select(Run)).one()
        last, newest = session.execute(
            select(func.max(BlockRow.last_step), func.max(BlockRow.seq)).where(BlockRow.level == 0)
        ).one()
    assert (run.step, run.seq) == (last, newest)
    with database.read() as session:
        assert session.get_one(Run, run.id).step >= run.step


def test_a_backup_contains_a_checkpoint_that_is_removed_while_the_backup_runs(
    database: Database, data_dir: Path, tmp_path: Path
) -> None:
    claim = claimed(database)
    path = f"runs/{claim.run_id}/checkpoints/step-1.safetensors"
    place = data_dir / path
    place.parent.mkdir(parents=True)
    place.write_bytes(b"weights")
    Recording(database, claim).write(4)
    with database.write() as session:
        store_checkpoint(session, claim.run_id, claim.attempt, 1, path, hashlib.sha256(b"weights").hexdigest())
    removed = []

    def remove(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        # Removes the file after the table is read and before the file is copied.
        if sql.startswith("SELECT runs.id") and place.exists():
            place.unlink()
            removed.append(sql)

    event.listen(Engine, "before_cursor_execute", remove)
    try:
        _, first = made(database, data_dir, tmp_path)
        _, second = backup(database, data_dir, tmp_path / "two.backup", nothing)
    finally:
        event.remove(Engine, "before_cursor_execute", remove)
    assert removed
    assert [part.name for part in first.parts if part.name.startswith("files/")] == [f"files/{path}"]
    assert (first.absent, second.absent) == ([], [path])


def test_a_backup_contains_no_secret(filled: Database, data_dir: Path, tmp_path: Path) -> None:
    file, _ = made(filled, data_dir, tmp_path)
    assert TOKEN.encode() not in file.read_bytes()
    with tarfile.open(file) as tar:
        assert not [name for name in tar.getnames() if "token" in name and not name.startswith("tables/tokens/")]


def test_a_restore_into_a_non_empty_target_is_refused_and_changes_nothing(
    filled: Database, data_dir: Path, tmp_path: Path
) -> None:
    file, _ = made(filled, data_dir, tmp_path)
    before = checksums(filled)
    with pytest.raises(BackupError, match=r"not empty: table \w+ has rows"):
        restore(filled, tmp_path / "elsewhere", file, nothing)
    assert checksums(filled) == before
    empty = Database(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(BackupError, match="runs is not empty"):
        restore(empty, data_dir, file, nothing)
    assert tables_of(empty) == set()
    with pytest.raises(BackupError, match="already exists"):
        backup(filled, data_dir, file, nothing)
    empty.close()


@pytest.mark.parametrize("moment", ["INSERT INTO transitions", "INSERT INTO blocks"])
def test_a_restore_that_fails_half_way_leaves_no_data_behind(
    filled: Database, data_dir: Path, target: Database, tmp_path: Path, moment: str
) -> None:
    file, _ = made(filled, data_dir, tmp_path)

    def fail(_connection: Any, _cursor: Any, sql: str, *_: Any) -> None:
        if sql.startswith(moment):
            raise OSError("no space left on device")

    event.listen(Engine, "before_cursor_execute", fail)
    try:
        with pytest.raises(OSError, match="no space"):
            restore(target, tmp_path / "elsewhere", file, nothing)
    finally:
        event.remove(Engine, "before_cursor_execute", fail)
    assert tables_of(target) == set()
    assert list((tmp_path / "elsewhere").iterdir()) == []
    restore(target, tmp_path / "elsewhere", file, nothing)
    assert checksums(target) == checksums(filled)


def test_damage_anywhere_is_found_before_anything_is_restored(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite)
    file, manifest = made(sqlite, tmp_path, tmp_path)
    good, broken = file.read_bytes(), tmp_path / "broken.backup"

    @given(data=st.data())
    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    def damaged(data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(good) - 1))
        if data.draw(st.booleans()):
            broken.write_bytes(good[:at])
        else:
            flipped = bytes([good[at] ^ (1 << data.draw(st.integers(0, 7)))])
            broken.write_bytes(good[:at] + flipped + good[at + 1 :])
        try:
            found = verify(broken)
        except BackupError:
            return
        assert found == manifest  # the changed bit belongs to the padding, which contains no data

    damaged()
    named = {part.name: part for part in manifest.parts}
    with tarfile.open(file) as tar:
        for member in tar:
            if member.name in named:
                at = member.offset_data + member.size // 2
                broken.write_bytes(good[:at] + bytes([good[at] ^ 1]) + good[at + 1 :])
                with pytest.raises(BackupError, match=f"{member.name} does not match its SHA-256"):
                    verify(broken)
    target = Database(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(BackupError, match="does not match"):
        restore(target, tmp_path / "elsewhere", broken, nothing)
    assert not target.path.exists()
    broken.write_bytes(good[: len(good) // 2])
    with pytest.raises(BackupError, match=r"cut short|damaged"):
        verify(broken)


values = st.none() | st.integers(-(2**63), 2**63 - 1) | st.floats() | st.booleans() | st.text()


@given(st.lists(st.tuples(values, values, st.none() | st.binary(max_size=300)), max_size=20))
def test_rows_survive_the_codec_bit_for_bit(rows: list[tuple[Any, Any, bytes | None]]) -> None:
    binary = [False, False, True]
    back = list(decode_rows(b"".join(encode_row(row, binary) for row in rows), binary))
    assert repr(back) == repr(rows)  # repr distinguishes -0.0 from 0.0 and treats NaN as equal to NaN


def test_an_interrupted_backup_leaves_no_backup_file(filled: Database, data_dir: Path, tmp_path: Path) -> None:
    file = tmp_path / "one.backup"

    def interrupted(text_: str) -> None:
        if text_.startswith("runs:"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        backup(filled, data_dir, file, interrupted)
    assert [path.name for path in tmp_path.iterdir() if "backup" in path.name] == []
    assert not list(data_dir.glob(".backup-*"))


def test_a_killed_backup_leaves_no_backup_file(sqlite: Database, tmp_path: Path) -> None:
    fill(sqlite)
    program = (
        "import os, signal, sys; from pathlib import Path; from server.backup.create import backup\n"
        "from server.database.connection import Database\n"
        "say = lambda text: os.kill(os.getpid(), signal.SIGKILL) if text.startswith('runs:') else None\n"
        "backup(Database(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[2]) / 'one.backup', say)"
    )
    done = subprocess.run([sys.executable, "-c", program, sqlite.url, str(tmp_path)], timeout=200)
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "one.backup").exists()


def test_a_backup_of_the_previous_schema_is_restored_and_migrated(sqlite: Database, target: Database, tmp_path: Path) -> None:
    fill(sqlite)
    sqlite.migrate("0003", lose=True)
    known = columns_of(sqlite)
    with pytest.raises(SchemaMismatch, match="needs"):
        made(sqlite, tmp_path, tmp_path)
    # The following creates the backup as the old release wrote it, without the tables and columns that were added later.
    sqlite.migrate()
    file, manifest = made(sqlite, tmp_path, tmp_path)
    rewritten = tmp_path / "old.backup"
    with rewritten.open("wb") as out:
        old = ArchiveWriter(out, replace(manifest, schema="0003", tables=[], parts=[]))
        contents: dict[str, list[Any]] = {table.name: [] for table in manifest.tables}
        for name, content in members(file):
            if name.startswith("tables/"):
                info = next(t for t in manifest.tables if t.name == name.split("/")[1])
                contents[info.name] += rows_of(file, name, content, info)
        for info in (table for table in manifest.tables if table.name in known):
            kept = [i for i, (column, _) in enumerate(info.columns) if column in known[info.name]]
            columns = [info.columns[i] for i in kept]
            list(old.table(replace(info, columns=columns), [tuple(row[i] for i in kept) for row in contents[info.name]]))
        old.close()
    restore(target, tmp_path / "elsewhere", rewritten, nothing)
    assert checksums(target) == checksums(sqlite)


def test_the_commands_back_up_verify_and_restore_an_installation(filled: Database, data_dir: Path, tmp_path: Path) -> None:
    def stablessm(*arguments: str) -> tuple[int, str]:
        done = CliRunner().invoke(main, list(arguments))
        return done.exit_code, done.output

    with filled.write() as session:
        session.execute(update(CheckpointRow).values(sha256="1" * 64))
    folder = tmp_path / "kept"
    folder.mkdir()
    source = ["--data-dir", str(data_dir), "--database-url", filled.url]
    code, output = stablessm("backup", str(folder), *source)
    assert code == 0, output
    file = next(folder.iterdir())
    assert f"{file}" in output
    assert "4 checkpoints are missing, unreadable or damaged" in output
    code, output = stablessm("restore", "--verify", str(file), *source)
    assert (code, "is undamaged" in output) == (0, True), output
    code, output = stablessm("restore", str(file), *source)
    assert (code, "not empty" in output) == (1, True), output
    code, output = stablessm("restore", str(file), "--data-dir", str(tmp_path / "new"))
    assert code == 0, output
    restored = Database(f"sqlite:///{tmp_path}/new/stablessm.db")
    assert checksums(restored) == checksums(filled)
    restored.close()
    file.write_bytes(file.read_bytes()[:-20_000])
    code, output = stablessm("restore", "--verify", str(file))
    assert code == 1
    assert "cut short" in output
