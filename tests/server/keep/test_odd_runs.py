"""A run whose stored data nobody can read does not stop the regular work on other runs, and the log says what happened."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import func, select, update

from server.database.connection import Database
from server.database.models import DeletedRun, Run
from server.keep.folders import NOTE, installation_name, remove_deleted
from server.keep.housekeeping import Housekeeping
from server.keep.retention import apply_retention
from server.keep.trash import move_to_trash
from server.lifecycle import transitions as lifecycle
from server.lifecycle.verdicts import judge_ended
from server.series import compaction
from server.series.compaction import compact_next
from server.settings import Settings
from tests.server.recording import Recording, claimed, run_of

pytestmark = pytest.mark.both_engines


def ended(database: Database) -> int:
    run = claimed(database)
    recording = Recording(database, run)
    recording.write(20)
    recording.write(20)
    with database.write() as session:
        lifecycle.finish(session, run.run_id, run.attempt, "finished")
        session.get_one(Run, run.run_id).finished_at = time.time() - 3600
    return run.run_id


def spoil(database: Database, run_id: int, **columns: object) -> None:
    """Store values in the run's JSON columns that no program of this project writes."""
    with database.write() as session:
        session.execute(update(Run).where(Run.id == run_id).values(columns).execution_options(synchronize_session=False))


def settings(database: Database, folder: Path, **more: object) -> Settings:
    return Settings(data_dir=folder, database_url=database.url, **more)


def test_compaction_leaves_an_odd_run_out_and_compacts_the_next(
    database: Database, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    odd, sound = ended(database), ended(database)
    compact: Callable[..., bool] = compaction.compact

    def fails_for_one(database: Database, run_id: int, **options: object) -> bool:
        if run_id == odd:
            raise TypeError("a number is missing")
        return compact(database, run_id, **options)

    monkeypatch.setattr(compaction, "compact", fails_for_one)
    failed: set[int] = set()
    assert compact_next(database, failed=failed) == sound
    assert compact_next(database, failed=failed) is None
    assert failed == {odd}
    (line,) = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert line.getMessage() == "compaction leaves this run as it is: TypeError: a number is missing"
    assert line.__dict__["run"] == odd


def test_a_run_that_cannot_be_judged_ends_no_round_and_is_not_tried_again(
    database: Database, caplog: pytest.LogCaptureFixture
) -> None:
    sound, odd = ended(database), ended(database)
    spoil(database, odd, config={"model": {}, "optimizer": 3}, divergence=[1])
    assert judge_ended(database) == 2
    assert run_of(database, sound).judged_at is not None
    assert run_of(database, odd).judged_at is not None
    assert judge_ended(database) == 0
    assert [record.__dict__["run"] for record in caplog.records if record.levelno >= logging.WARNING] == [odd]


def test_retention_keeps_a_run_with_unreadable_tags_and_moves_the_others(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    odd, sound = ended(database), ended(database)
    spoil(database, odd, tags=5)
    assert apply_retention(database, settings(database, tmp_path, retention_days=0.01), most=10) == 1
    with database.read() as session:
        assert session.scalars(select(Run.id).where(Run.deleted_at.is_not(None))).all() == [sound]
    assert "retention keeps this run, because its tags cannot be read" in caplog.text


def test_a_cleaner_passes_over_an_odd_row_and_removes_the_other_folders(
    database: Database, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    runs = [ended(database), ended(database)]
    for run_id in runs:
        (tmp_path / "runs" / str(run_id)).mkdir(parents=True)
        (tmp_path / "runs" / str(run_id) / NOTE).write_text(installation_name(database))
    with database.write() as session:
        for run_id, files in zip(runs, ([[1, 2, 3]], []), strict=True):
            session.delete(session.get_one(Run, run_id))
            session.add(DeletedRun(run_id=run_id, at=0.0, files=files))
    assert remove_deleted(database, tmp_path) == [runs[1]]
    assert "removing folders leaves this run as it is: ValueError" in caplog.text


def test_one_kind_of_housekeeping_that_fails_does_not_keep_the_others_from_their_work(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gone = ended(database)
    with database.write() as session:
        move_to_trash(session, gone, by="somebody")

    def fails(*_: object, **__: object) -> int:
        raise ValueError("odd")

    monkeypatch.setattr("server.keep.housekeeping.apply_retention", fails)
    Housekeeping(database, settings(database, tmp_path, trash_hours=0)).round()
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(Run)) == 0
    assert "retention failed; the rest of this round of housekeeping continues" in caplog.text
    assert "waits for the database" not in caplog.text
