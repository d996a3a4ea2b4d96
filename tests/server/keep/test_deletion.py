"""A run of any length is purged in small steps; a reader never sees half a run in the meantime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, func, select, text

from server.database.connection import Database
from server.database.models import AlertRow, BlockRow, CheckpointRow, DeletedRun, Run, SeriesRow, Transition
from server.keep import deletion, trash
from server.lifecycle import transitions as lifecycle
from server.series.recording import store_checkpoint
from server.settings import Settings
from tests.server.recording import Recording, claim, claimed, nonfinite, run_of

pytestmark = pytest.mark.both_engines


@pytest.fixture
def settings(database: Database, tmp_path: Path) -> Settings:
    return Settings(data_dir=tmp_path / "state", database_url=database.url)


def ended(database: Database, flushes: int = 30) -> Recording:
    recording = Recording(database, claimed(database), width=1)
    for i in range(flushes):
        recording.write(2, [nonfinite(step=i)])
    run_id, attempt = recording.claim.run_id, recording.claim.attempt
    with database.write() as session:
        store_checkpoint(session, run_id, attempt, 2, "x", "0" * 64)
        lifecycle.finish(session, run_id, attempt, "failed")
    return recording


def trashed(database: Database, flushes: int = 30) -> int:
    run_id = ended(database, flushes).claim.run_id
    with database.write() as session:
        trash.move_to_trash(session, run_id, by="tester")
    return run_id


def resumed_by_an_older_program(database: Database, run_id: int) -> None:
    with database.engine.begin() as connection:
        resume = "UPDATE runs SET status = 'queued', seq = seq + 1, finished_at = NULL WHERE id = :run"
        connection.execute(text(resume), {"run": run_id})
        event = ("INSERT INTO transitions (run_id, seq, status, reason, attempt, step, at) "
                 "SELECT id, seq, status, 'resumed', attempt, step, 1.0 FROM runs WHERE id = :run")  # fmt: skip
        connection.execute(text(event), {"run": run_id})


def rows(database: Database, run_id: int) -> dict[str, int]:
    with database.read() as session:
        tables = (BlockRow, AlertRow, CheckpointRow, SeriesRow, Transition)
        return {t.__tablename__: session.scalar(select(func.count()).where(t.run_id == run_id)) or 0 for t in tables}


@pytest.mark.slow
def test_a_purge_deletes_only_its_run_in_small_statements(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 7)
    run_id, other = trashed(database), trashed(database)
    kept, deleted = rows(database, other), []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("DELETE FROM blocks", "DELETE FROM alerts")):
            deleted.append(cursor.rowcount)
        elif statement.startswith("DELETE FROM runs"):
            with database.read() as session:  # only few rows are left for the cascade
                deleted.append(-1)
                assert session.scalar(select(func.count()).where(CheckpointRow.run_id == run_id)) == 0

    event.listen(database.engine, "after_cursor_execute", note)
    assert deletion.purge(database, settings, run_id)
    event.remove(database.engine, "after_cursor_execute", note)
    assert deleted[-1] == -1
    assert max(deleted) <= 7
    assert sum(deleted) == 90 - 1
    assert not any(rows(database, run_id).values())
    assert rows(database, other) == kept
    with database.read() as session:
        assert session.scalars(select(Run.id)).all() == [other]
        assert [(row.run_id, row.files) for row in session.scalars(select(DeletedRun))] == [(run_id, [["x", "0" * 64]])]
    assert not deletion.purge(database, settings, run_id), "the run must already be deleted"


def test_an_interrupted_purge_can_be_continued_and_the_run_cannot_be_restored(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_id = trashed(database)

    def away(_settings: Settings, _run_id: int) -> None:
        raise OSError("the store does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(deletion, "remove_stored", away)
        with pytest.raises(OSError, match="store"):
            deletion.purge(database, settings, run_id)
    with database.write() as session:
        with pytest.raises(lifecycle.NotAllowed, match="is already being deleted for good"):
            trash.take_out(session, run_id, by="tester")
        assert trash.due(session, 24.0, 10) == [run_id], "an interrupted purge must be due whatever its age"
    assert deletion.purge(database, settings, run_id)


def test_a_run_that_an_older_program_resumes_during_its_purge_starts_from_the_beginning(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 7)
    run_id, pieces = trashed(database), deletion._piece

    def resumed_after_the_first(database: Database, run_id: int) -> bool | None:
        more = pieces(database, run_id)
        if more and run_of(database, run_id).status != "queued":
            resumed_by_an_older_program(database, run_id)
        return more

    monkeypatch.setattr(deletion, "_piece", resumed_after_the_first)
    assert not deletion.purge(database, settings, run_id)
    assert run_of(database, run_id).deleted_at is None
    again = claim(database)
    assert (again.run_id, again.checkpoint) == (run_id, None)
    assert rows(database, run_id)["blocks"] == 0
    with database.write() as session:
        lifecycle.finish(session, run_id, again.attempt, "finished")
    with database.write() as session:
        trash.move_to_trash(session, run_id, by="tester")
    with database.write() as session:
        trash.take_out(session, run_id, by="tester")  # the remains of the first purge do not prevent this


def test_a_run_that_an_older_program_resumed_from_the_trash_is_kept_after_its_end(database: Database, settings: Settings) -> None:
    run_id = trashed(database, 1)
    resumed_by_an_older_program(database, run_id)
    with database.engine.begin() as connection:  # finished, as if trained by an older worker
        connection.execute(text("UPDATE runs SET status = 'finished' WHERE id = :run"), {"run": run_id})
    assert not deletion.purge(database, settings, run_id)
    assert run_of(database, run_id).deleted_at is None
