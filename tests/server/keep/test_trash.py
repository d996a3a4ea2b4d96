"""A run in the trash appears nowhere else, cannot be changed, and can be restored unchanged."""

from __future__ import annotations

import pytest

from server.database.connection import Database
from server.database.models import Run, Transition
from server.keep import trash
from server.lifecycle import answers
from server.lifecycle import transitions as lifecycle
from server.live import frames
from server.search import listing
from server.series.catalogue import catalogue_snapshot
from server.series.layout import Layout
from stablessm_core.spec.config import RunConfig
from tests.server.keep.test_deletion import ended, resumed_by_an_older_program, rows, trashed
from tests.server.recording import claim, config, run_of, submitted

pytestmark = pytest.mark.both_engines


@pytest.mark.slow
def test_a_run_in_the_trash_is_invisible_and_is_restored_unchanged(database: Database) -> None:
    run_id, other = ended(database, 3).claim.run_id, ended(database, 1).claim.run_id
    before, stored = run_of(database, run_id), rows(database, run_id)
    with database.write() as session:
        trash.move_to_trash(session, run_id, by="mia", reason="too old")
    with database.read() as session:
        assert [run.id for run in listing.list_runs(session).runs] == [other]
        assert [run.id for run in listing.chosen_runs(session, q="", limit=9)] == [other]
        assert [row.id for row in answers.run_rows(session)] == [other]
        assert answers.run_row(session, run_id) is None
        with pytest.raises(LookupError, match="there is no run"):
            listing.chosen_runs(session, ids=[run_id], limit=9)
        for read in (Layout, catalogue_snapshot):
            with pytest.raises(LookupError, match="there is no run"):
                read(session, run_id)
        assert frames.status_now(session, run_id) is None
        assert frames.read_new_events(session, {run_id: before.seq}, {}, 9) == {run_id: None}, (
            "the streams of a trashed run must end"
        )
        kept, thrown = trash.occupied(session)
        assert (kept.runs, thrown) == (1, trash.Occupied(1, before.bytes_stored))
        assert [run.id for run in trash.trash_page(session, limit=9)] == [run_id]
    with database.write() as session:
        run = trash.take_out(session, run_id, by="mia")
        assert (run.status, run.result, run.finished_at) == (before.status, before.result, before.finished_at)
    with database.read() as session:
        reasons = [change.reason for change in session.query(Transition).filter_by(run_id=run_id).order_by(Transition.seq)]
        assert reasons[-2:] == ["moved to the trash by mia: too old", "restored from the trash by mia"]
        assert [run.id for run in listing.list_runs(session).runs] == [other, run_id]
    assert rows(database, run_id) == stored | {"transitions": stored["transitions"] + 2}


def test_a_run_in_the_trash_cannot_be_changed(database: Database) -> None:
    run_id = trashed(database, 1)
    with database.write() as session:
        for act in (lifecycle.resume_run, lifecycle.request_cancel, lambda s, r: lifecycle.move(s, r, {"priority": 1})):
            with pytest.raises(LookupError, match=f"run {run_id} is in the trash"):
                act(session, run_id)
        with pytest.raises(LookupError, match=rf"run {run_id} is in the trash: tester deleted it at .* UTC"):
            trash.move_to_trash(session, run_id, by="tester")


def test_only_ended_runs_can_be_trashed_and_only_trashed_runs_can_be_restored(database: Database) -> None:
    queued = submitted(database)
    with database.write() as session, pytest.raises(lifecycle.NotAllowed, match=f"run {queued} is queued"):
        trash.move_to_trash(session, queued, by="tester")
    running = claim(database).run_id
    with database.write() as session:
        with pytest.raises(lifecycle.NotAllowed, match=f"run {running} is running"):
            trash.move_to_trash(session, running, by="tester")
        with pytest.raises(lifecycle.NotAllowed, match=f"run {running} is not in the trash"):
            trash.take_out(session, running, by="tester")
        for act in (trash.move_to_trash, trash.take_out):
            with pytest.raises(LookupError, match="there is no run 99"):
                act(session, 99, by="tester")


def test_the_idempotency_key_of_a_run_in_the_trash_is_refused(database: Database) -> None:
    same: RunConfig = config()
    with database.write() as session:
        run_id = lifecycle.submit(session, same, idempotency_key="k").id
        lifecycle.request_cancel(session, run_id)
        trash.move_to_trash(session, run_id, by="tester")
    with (
        database.write() as session,
        pytest.raises(lifecycle.NotAllowed, match=f"belongs to run {run_id}, which is in the trash"),
    ):
        lifecycle.submit(session, same, idempotency_key="k")


def test_claiming_a_run_that_an_older_program_resumed_takes_the_run_out_of_the_trash(database: Database) -> None:
    run_id = trashed(database, 1)
    resumed_by_an_older_program(database, run_id)
    assert claim(database).run_id == run_id
    run: Run = run_of(database, run_id)
    assert (run.status, run.deleted_at, run.deleted_by) == ("running", None, None)


def test_the_trash_is_read_page_by_page_and_old_runs_are_due_for_purging(database: Database) -> None:
    runs = [trashed(database, 1) for _ in range(3)]
    with database.write() as session:
        session.get_one(Run, runs[0]).deleted_at -= 24 * trash.HOUR  # type: ignore[operator]
    with database.read() as session:
        first = trash.trash_page(session, limit=2)
        rest = trash.trash_page(session, limit=2, before=(first[-1].deleted_at or 0.0, first[-1].id))
        assert [run.id for run in (*first, *rest)] == [runs[2], runs[1], runs[0]]
        assert trash.due(session, 24.0, 9) == [runs[0]]
        assert trash.due(session, 0.0, 2) == runs[:2]
