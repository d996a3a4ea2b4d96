"""A run of any length is deleted in small pieces; whoever comes in between finds nothing half."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event, func, select

from server.database.connection import Database
from server.database.models import AlertRow, BlockRow, CheckpointRow, Run, SeriesRow, Transition
from server.runs import deletion, lifecycle
from server.series.recording import store_checkpoint
from tests.server.recording import Recording, claim, claimed, nonfinite


def ended(database: Database, flushes: int = 30) -> Recording:
    recording = Recording(database, claimed(database), width=1)
    for i in range(flushes):
        recording.write(2, [nonfinite(step=i)])
    run_id, attempt = recording.claim.run_id, recording.claim.attempt
    with database.write() as session:
        store_checkpoint(session, run_id, attempt, 20, "x", "0" * 64)
        lifecycle.finish(session, run_id, attempt, "failed")
    return recording


def rows(database: Database, run_id: int) -> dict[str, int]:
    with database.read() as session:
        tables = (BlockRow, AlertRow, CheckpointRow, SeriesRow, Transition)
        return {t.__tablename__: session.scalar(select(func.count()).where(t.run_id == run_id)) or 0 for t in tables}


def test_no_statement_deletes_more_than_a_piece_and_only_this_run_goes(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deletion, "ROWS", 7)
    run_id, other = ended(database).claim.run_id, ended(database).claim.run_id
    kept, deleted = rows(database, other), []

    def note(_connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith(("DELETE FROM blocks", "DELETE FROM alerts")):
            deleted.append(cursor.rowcount)
        elif statement.startswith("DELETE FROM runs"):
            with database.read() as session:  # nothing big is left for the cascade
                deleted.append(-1)
                assert session.scalar(select(func.count()).where(CheckpointRow.run_id == run_id)) == 0

    event.listen(database.engine, "after_cursor_execute", note)
    deletion.delete_run(database, run_id)
    event.remove(database.engine, "after_cursor_execute", note)
    assert deleted[-1] == -1
    assert max(deleted) <= 7
    assert sum(deleted) == 90 - 1
    assert not any(rows(database, run_id).values())
    assert rows(database, other) == kept
    with database.read() as session:
        assert session.scalars(select(Run.id)).all() == [other]


def test_a_resume_in_between_begins_anew(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deletion, "ROWS", 7)
    run_id = ended(database).claim.run_id
    pieces = deletion._piece

    def resumed_after_the_first(database: Database, run_id: int) -> bool:
        more = pieces(database, run_id)
        with database.write() as session:
            lifecycle.resume_run(session, run_id)
        return more

    monkeypatch.setattr(deletion, "_piece", resumed_after_the_first)
    with pytest.raises((lifecycle.NotAllowed, LookupError), match=f"run {run_id} is queued"):
        deletion.delete_run(database, run_id)
    again = claim(database)
    assert (again.run_id, again.checkpoint) == (run_id, None)
    assert rows(database, run_id)["blocks"] == 0


def test_only_ended_runs_are_deleted(database: Database) -> None:
    run_id = claimed(database).run_id
    with pytest.raises(lifecycle.NotAllowed, match=f"run {run_id} is running"):
        deletion.delete_run(database, run_id)
    with pytest.raises(LookupError, match="there is no run 99"):
        deletion.delete_run(database, 99)
