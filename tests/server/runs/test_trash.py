"""A run in the trash is nowhere to be seen, can be brought back as it was, and cannot be worked with meanwhile."""

from __future__ import annotations

import pytest

from server.database.connection import Database
from server.database.models import Run, Transition
from server.live import frames
from server.runs import answers, lifecycle, listing, trash
from server.series.reading import Layout, catalogue_at
from stablessm_core.config import RunConfig
from tests.server.recording import claim, config, run_of, submitted
from tests.server.runs.test_deletion import ended, resumed_by_an_older_program, rows, trashed


def test_it_is_nowhere_to_be_seen_and_comes_back_as_it_was(database: Database) -> None:
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
        for read in (Layout, catalogue_at):
            with pytest.raises(LookupError, match="there is no run"):
                read(session, run_id)
        assert frames.status_now(session, run_id) is None
        assert frames.read_new_events(session, {run_id: before.seq}, {}, 9) == {run_id: None}, "its viewers are sent away"
        kept, thrown = trash.occupied(session)
        assert (kept.runs, thrown) == (1, trash.Occupied(1, before.bytes_stored))
        assert [run.id for run in trash.trash_page(session, limit=9)] == [run_id]
    with database.write() as session:
        run = trash.take_out(session, run_id, by="mia")
        assert (run.status, run.result, run.finished_at) == (before.status, before.result, before.finished_at)
    with database.read() as session:
        reasons = [change.reason for change in session.query(Transition).filter_by(run_id=run_id).order_by(Transition.seq)]
        assert reasons[-2:] == ["moved to the trash by mia: too old", "brought back from the trash by mia"]
        assert [run.id for run in listing.list_runs(session).runs] == [other, run_id]
    assert rows(database, run_id) == stored | {"transitions": stored["transitions"] + 2}


def test_nothing_can_be_done_with_it_meanwhile(database: Database) -> None:
    run_id = trashed(database, 1)
    with database.write() as session:
        for act in (lifecycle.resume_run, lifecycle.request_cancel, lambda s, r: lifecycle.move(s, r, {"priority": 1})):
            with pytest.raises(LookupError, match=f"run {run_id} is in the trash"):
                act(session, run_id)
        with pytest.raises(LookupError, match=rf"run {run_id} is in the trash: tester deleted it at .* UTC"):
            trash.move_to_trash(session, run_id, by="tester")


def test_only_ended_runs_go_there_and_only_those_come_back(database: Database) -> None:
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


def test_an_idempotency_key_of_a_run_in_the_trash_is_refused_rather_than_answered_with_it(database: Database) -> None:
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


def test_a_claim_takes_what_an_older_program_resumed_out_of_the_trash(database: Database) -> None:
    run_id = trashed(database, 1)
    resumed_by_an_older_program(database, run_id)
    assert claim(database).run_id == run_id
    run: Run = run_of(database, run_id)
    assert (run.status, run.deleted_at, run.deleted_by) == ("running", None, None)


def test_the_trash_is_read_page_by_page_and_due_after_its_time(database: Database) -> None:
    runs = [trashed(database, 1) for _ in range(3)]
    with database.write() as session:
        session.get_one(Run, runs[0]).deleted_at -= 24 * trash.HOUR  # type: ignore[operator]
    with database.read() as session:
        first = trash.trash_page(session, limit=2)
        rest = trash.trash_page(session, limit=2, before=(first[-1].deleted_at or 0.0, first[-1].id))
        assert [run.id for run in (*first, *rest)] == [runs[2], runs[1], runs[0]]
        assert trash.due(session, 24.0, 9) == [runs[0]]
        assert trash.due(session, 0.0, 2) == runs[:2]
