"""Stored flushes are numbered without gaps, fenced and repeatable, and steps can be reverted."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.fence import LeaseLost
from server.database.models import AlertRow, BlockRow, CheckpointRow, Run, SeriesRow, Transition
from server.lifecycle import answers
from server.lifecycle import transitions as lifecycle
from server.series import reading
from server.series.catalogue import read_catalogue
from server.series.layout import Layout
from server.series.recording import store_checkpoint
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.detectors.raised_elsewhere import WORKER_LOST
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SeriesSpec, following_catalogue, layer_catalogue, scalar
from tests.server.recording import Recording, claim, claimed, nonfinite, run_of, submitted
from tests.server.storing import store_catalogue, store_flush, truncate

pytestmark = pytest.mark.both_engines


def rows(database: Database, run_id: int) -> list[tuple[object, ...]]:
    """All columns of the run's blocks, including the payload."""
    with database.read() as session:
        stored = session.scalars(select(BlockRow).where(BlockRow.run_id == run_id))
        return sorted(
            (b.group_name, b.level, b.first_step, b.last_step, b.point_count, b.attempt, b.seq, b.payload) for b in stored
        )


def transitions(database: Database, run_id: int) -> list[Transition]:
    with database.read() as session:
        return list(session.scalars(select(Transition).where(Transition.run_id == run_id).order_by(Transition.seq)))


def store(database: Database, own: lifecycle.Claim, flush: list[Block], step: int, attempt: int | None = None, alerts=()) -> int:
    with database.write() as session:
        return store_flush(session, own.run_id, attempt or own.attempt, flush, alerts, step, 10.0)


def described(database: Database, claim: lifecycle.Claim, *groups: str) -> None:
    """Store a catalogue with one series in each group."""
    with database.write() as session:
        series = [SeriesSpec(f"{group}/x", group, 1, "", "") for group in groups]
        store_catalogue(session, claim.run_id, claim.attempt, series)


def test_a_flush_and_its_alerts_are_one_event(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(64, [nonfinite()])
    run = run_of(database, recording.claim.run_id)
    assert (run.seq, run.step, run.steps_per_second) == (3, 64, 100.0)  # three events: submitted, claimed, flushed
    with database.read() as session:
        assert set(session.scalars(select(BlockRow.seq))) == {3}
        alert = session.scalars(select(AlertRow)).one()
    assert (alert.seq, alert.attempt, alert.value, alert.step) == (3, 1, "NaN", 3)


def test_a_repeated_flush_changes_nothing_and_uses_no_event_number(database: Database) -> None:
    recording = Recording(database, claimed(database))
    flush = recording.write(64, [nonfinite()])
    before = rows(database, recording.claim.run_id)
    assert store(database, recording.claim, flush, 64, alerts=[nonfinite()]) == 3
    assert rows(database, recording.claim.run_id) == before
    assert run_of(database, recording.claim.run_id).seq == 3
    recording.write(10)
    assert run_of(database, recording.claim.run_id).seq == 4


def test_a_repeated_older_flush_does_not_decrease_the_progress(database: Database) -> None:
    recording = Recording(database, claimed(database))
    first = recording.write(64)
    recording.write(64)
    store(database, recording.claim, first, 64)
    assert run_of(database, recording.claim.run_id).step == 128


def test_progress_without_points_creates_no_event(database: Database) -> None:
    own = claimed(database)
    assert store(database, own, [], 5) == 2
    run = run_of(database, own.run_id)
    assert (run.seq, run.step) == (2, 5)


def test_an_alert_is_stored_once_per_event_and_tensor(database: Database) -> None:
    own = claimed(database)
    alerts = [
        nonfinite(),
        nonfinite(),
        nonfinite(tensor="head.weight"),
        nonfinite(value=math.inf, step=4),
        nonfinite("dead_eigenvalues"),
    ]
    store(database, own, [], 4, alerts=alerts)
    store(database, own, [], 4, alerts=alerts)
    with database.read() as session:
        assert session.scalar(select(func.count()).select_from(AlertRow)) == 4
        assert session.scalar(select(AlertRow.value).where(AlertRow.step == 4)) == "Infinity"


@pytest.mark.parametrize("fate", ["claimed by another", "finished", "queued again"])
def test_a_worker_without_the_lease_can_write_nothing(database: Database, fate: str) -> None:
    recording = Recording(database, claimed(database))
    recording.write(8)
    run_id, old = recording.claim.run_id, recording.claim.attempt
    with database.write() as session:
        if fate == "finished":
            lifecycle.finish(session, run_id, old, "finished")
        else:
            lifecycle.release(session, run_id, old, "lost", loss=WORKER_LOST)
    if fate == "claimed by another":
        claim(database, "another")
    before, row = rows(database, run_id), run_of(database, run_id)
    late = Block("scalars", 0, 9, 1, np.zeros((1, 4), np.float32))
    acts: list[Callable[[Session], object]] = [
        lambda s: store_flush(s, run_id, old, [late], [nonfinite()], 12, 1.0),
        lambda s: store_catalogue(s, run_id, old, layer_catalogue(7, 2, Form.of_map("best", "discrete"))),
        lambda s: store_checkpoint(s, run_id, old, 4, "x", "0" * 64),
        lambda s: truncate(s, run_id, old, 1, "rollback"),
        lambda s: lifecycle.set_environment(s, run_id, old, {"device": "cpu"}),
        lambda s: lifecycle.finish(s, run_id, old, "failed", "no"),
        lambda s: lifecycle.release(s, run_id, old, "drained"),
    ]
    for act in acts:
        with pytest.raises(LeaseLost, match=f"run {run_id} is not running under attempt {old}"), database.write() as session:
            act(session)
    assert rows(database, run_id) == before
    after = run_of(database, run_id)
    assert (after.seq, after.status, after.step, after.environment) == (row.seq, row.status, row.step, None)


def test_a_worker_that_keeps_writing_after_losing_its_run_leaves_no_data(database: Database) -> None:
    """The old worker flushes as fast as it can while its run is given away. Only the new attempt's steps remain, each once."""
    own = claimed(database)
    described(database, own, "scalars")
    begun, refused = threading.Event(), threading.Event()

    def zombie() -> None:
        for i in range(100_000):
            try:
                store(database, own, [Block("scalars", 0, 1 + 2 * i, 1, np.full((1, 2), 1, np.float32))], 2 * i + 2)
            except LeaseLost:
                refused.set()
                return
            if i == 3:
                begun.set()

    thread = threading.Thread(target=zombie)
    thread.start()
    assert begun.wait(100)
    with database.write() as session:
        lifecycle.release(session, own.run_id, own.attempt, "lost contact", loss=WORKER_LOST)
    heir = claim(database, "heir")
    described(database, heir, "scalars")
    for i in range(4):
        store(database, heir, [Block("scalars", 0, 1 + 3 * i, 1, np.full((1, 3), 2, np.float32))], 3 * i + 3)
    thread.join()
    assert refused.is_set()
    stored = [(first, last, attempt) for _, _, first, last, _, attempt, _, _ in rows(database, own.run_id)]
    assert stored == [(1, 3, 2), (4, 6, 2), (7, 9, 2), (10, 12, 2)]
    assert run_of(database, own.run_id).step == 12


def test_event_numbers_have_no_gaps_under_concurrent_writers(database: Database) -> None:
    """Several threads flush, send heartbeats and cancel: every number belongs to exactly one event, and none is missing."""
    own = claimed(database)
    described(database, own, *(f"lane/{lane}" for lane in range(3)))
    start = threading.Barrier(4)

    def flushes(lane: int) -> None:
        start.wait()
        for i in range(12):
            store(database, own, [Block(f"lane/{lane}", 0, 1 + 4 * i, 1, np.ones((1, 4), np.float32))], 4 * i)

    def beats() -> None:
        start.wait()
        for i in range(12):
            with database.write() as session:
                lifecycle.heartbeat(session, own.run_id, own.attempt)
                if i == 6:
                    lifecycle.request_cancel(session, own.run_id)

    threads = [threading.Thread(target=flushes, args=(i,)) for i in range(3)] + [threading.Thread(target=beats)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as session:
        used = sorted([*session.scalars(select(BlockRow.seq)), *session.scalars(select(Transition.seq))])
    run = run_of(database, own.run_id)
    assert used == list(range(1, run.seq + 1))
    assert run.seq == 2 + 36 + 1
    assert run.beat == 12 + 36 + 1, "a stored message counts as a heartbeat"


def test_truncation_shortens_the_block_at_the_boundary_and_records_an_event(database: Database) -> None:
    recording = Recording(database, claimed(database), every=3, first=3)
    for points in (50, 50, 50):
        recording.write(points)
    run_id, attempt = recording.claim.run_id, recording.claim.attempt
    with database.write() as session:
        store_checkpoint(session, run_id, attempt, 150, "old", "0" * 64)
        store_checkpoint(session, run_id, attempt, 440, "new", "1" * 64)
        seq = truncate(session, run_id, attempt, 200, "rolled back")
    recording.cut(200)
    with database.read() as session:
        for name, truth in recording.truth.items():
            data = reading.read_series(session, run_id, name, max_points=10_000)
            assert data.step.tolist() == recording.steps.tolist() == list(range(3, 200, 3))
            np.testing.assert_array_equal(data.value.view(np.uint32 if truth.dtype == np.float32 else np.uint64).ravel(),
                                          truth.view(np.uint32 if truth.dtype == np.float32 else np.uint64).ravel())  # fmt: skip
        assert list(session.scalars(select(CheckpointRow.step))) == [150]
    last = transitions(database, run_id)[-1]
    assert (last.seq, last.status, last.reason, last.truncated_from, last.step) == (seq, "running", "rolled back", 200, 199)
    assert run_of(database, run_id).step == 199


def test_truncation_removes_coarse_blocks_that_contain_truncated_steps(database: Database) -> None:
    recording = Recording(database, claimed(database), width=2, weird=False)
    recording.write(5000)  # has two coarse blocks of 2,048 steps: 1-2048 and 2049-4096
    run_id = recording.claim.run_id
    with database.write() as session:
        assert session.scalar(select(func.count()).where(BlockRow.level == 1, BlockRow.group_name == "ssm/0")) == 2
        truncate(session, run_id, recording.claim.attempt, 4096, "rolled back")
        assert list(session.scalars(select(BlockRow.last_step).where(BlockRow.level == 1, BlockRow.group_name == "ssm/0"))) == [
            2048
        ]
        truncate(session, run_id, recording.claim.attempt, 2049, "rolled back")
        assert list(session.scalars(select(BlockRow.last_step).where(BlockRow.level == 1, BlockRow.group_name == "ssm/0"))) == [
            2048
        ]


def test_alerts_of_truncated_steps_are_kept(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(20, [nonfinite(step=15)])
    with database.write() as session:
        truncate(session, recording.claim.run_id, recording.claim.attempt, 10, "rolled back")
        assert session.scalar(select(func.count()).select_from(AlertRow)) == 1


def test_a_checkpoint_ahead_of_its_telemetry_is_refused(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(8)
    with pytest.raises(ValueError, match="checkpoint of step 9 comes before its telemetry"), database.write() as session:
        store_checkpoint(session, recording.claim.run_id, recording.claim.attempt, 9, "x", "0" * 64)


def test_a_checkpoint_can_be_recorded_twice(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(8)
    for digest in ("0" * 64, "1" * 64):
        with database.write() as session:
            store_checkpoint(session, recording.claim.run_id, recording.claim.attempt, 8, "x", digest)
    with database.read() as session:
        assert session.scalars(select(CheckpointRow.sha256)).one() == "1" * 64


def test_a_catalogue_can_be_repeated_and_extended_but_not_changed(database: Database) -> None:
    own = claimed(database)
    layer = layer_catalogue(0, 8, Form.of_map("best", "continuous"))
    for _ in range(2):
        with database.write() as session:
            store_catalogue(session, own.run_id, own.attempt, layer)
    with database.write() as session:
        store_catalogue(session, own.run_id, own.attempt, layer_catalogue(1, 8, Form.of_map("best", "continuous")))
        offsets = {r.name: r.column_offset for r in session.scalars(select(SeriesRow).where(SeriesRow.group_name == "ssm/0"))}
    assert offsets == {
        "ssm/0/grad_over_weight": 0, "ssm/0/weight": 8, "ssm/0/dt": 16, "ssm/0/eigenvalue": 24, "ssm/0/boundary_distance": 32
    }  # fmt: skip
    changed = [replace(s, width=9) for s in layer]
    with pytest.raises(ValueError, match="has it as"), database.write() as session:
        store_catalogue(session, own.run_id, own.attempt, changed)
    joining = [replace(layer[0], name="ssm/0/other")]
    with pytest.raises(ValueError, match="is new in group 'ssm/0'"), database.write() as session:
        store_catalogue(session, own.run_id, own.attempt, joining)


def test_every_layer_stores_its_own_form_and_the_run_lists_the_distinct_forms(database: Database) -> None:
    own = claimed(database)  # the configuration of this run names `best`
    forms = [Form.of_map("exp", "continuous"), Form.of_map("exp", "continuous"), Form.of_map("best", "discrete", a=2.0)]
    layers = [s for layer, form in enumerate(forms) for s in layer_catalogue(layer, 8, form)]
    for _ in range(2):
        with database.write() as session:
            store_catalogue(session, own.run_id, own.attempt, [scalar("train/loss"), *layers])
    with database.read() as session:
        stored = {row.name: row.form for row in session.scalars(select(SeriesRow).where(SeriesRow.run_id == own.run_id))}
        assert stored == {"train/loss": None} | {s.name: s.form for s in layers}
        assert stored["ssm/1/dt"] == forms[1].data
        assert answers.runs_json(session, answers.run_rows(session, Run.id == own.run_id), 25.0)[0]["forms"] == [
            forms[0].data,
            forms[2].data,
        ]
    other = [replace(s, form=forms[2].data) for s in layers[:5]]
    with pytest.raises(ValueError, match="has the form"), database.write() as session:
        store_catalogue(session, own.run_id, own.attempt, other)


def test_the_migration_stores_the_missing_forms_of_old_runs(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.migrate()
    own = claimed(database, model__reparameterization={"name": "exp", "time": "continuous"})
    form = Form.of_map("exp", "continuous")
    layer = layer_catalogue(0, 8, form)
    following = following_catalogue(0, 8, form, length=100, every_eigenvalue=True)
    with database.write() as session:
        store_catalogue(session, own.run_id, own.attempt, [replace(s, form=None) for s in [scalar("train/loss"), *layer]])
    with database.read() as session:  # forms are not inferred from the configuration
        assert Layout(session, own.run_id).forms == {}
        assert {i.form is None for i in read_catalogue(session, own.run_id)} == {True}
    database.migrate("0015", lose=True)
    database.migrate()
    for _ in range(2):
        with database.read() as session:
            found = {i.name: i.form for i in read_catalogue(session, own.run_id)}
            assert found == {s.name: s.form for s in [scalar("train/loss"), *layer, *following]}
            forms = Layout(session, own.run_id).forms
            assert {group: form.data for group, form in forms.items()} == {s.group: s.form for s in [*layer, *following]}
        with database.write() as session:  # its worker continues
            store_catalogue(session, own.run_id, own.attempt, [scalar("train/loss"), *layer])
    database.close()


def test_deleting_a_run_removes_all_its_rows_and_its_id_is_not_reused(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(8, [nonfinite()])
    with database.write() as session:
        session.delete(session.get(Run, recording.claim.run_id))
    with database.read() as session:
        for table in (BlockRow, AlertRow, Transition, SeriesRow):
            assert session.scalar(select(func.count()).select_from(table)) == 0
    assert submitted(database) > recording.claim.run_id


def _alerts(database: Database, run_id: int) -> list[tuple[int, int, str]]:
    with database.read() as session:
        found = session.scalars(select(AlertRow).where(AlertRow.run_id == run_id).order_by(AlertRow.id))
        return [(alert.step, alert.attempt, alert.message) for alert in found]


def test_a_repeated_truncation_changes_nothing(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(20)
    for _ in range(2):
        with database.write() as session:
            seq = truncate(session, recording.claim.run_id, 1, 11, "rollback 1 of 3")
    assert [t.truncated_from for t in transitions(database, recording.claim.run_id)] == [None, None, 11]
    assert run_of(database, recording.claim.run_id).seq == seq


def test_an_alert_of_a_step_that_is_trained_again_after_a_resume_is_not_stored_twice(database: Database) -> None:
    own = claimed(database)
    store(database, own, [], 4, alerts=[nonfinite(step=3)])
    with database.write() as session:
        lifecycle.release(session, own.run_id, 1, "killed", loss=WORKER_LOST)
    again = claim(database)
    before = run_of(database, own.run_id).seq
    assert store(database, again, [], 4, alerts=[nonfinite(step=3)]) == before, "a known alert must not create an event"
    kept = [alert for alert in _alerts(database, own.run_id) if alert[0] == 3]
    assert kept == [(3, 1, "it is NaN")]


def test_an_alert_that_recurs_at_the_same_step_after_a_rollback_is_reported_again(database: Database) -> None:
    recording = Recording(database, claimed(database))
    run_id = recording.claim.run_id
    recording.write(5, [nonfinite(step=5)])
    with database.write() as session:
        taken_back = truncate(session, run_id, 1, 3, "rollback 1 of 3")
    for _ in range(2):  # repeated, because the response was lost
        assert store(database, recording.claim, [], 5, alerts=[nonfinite(step=5)]) == taken_back + 1
    assert store(database, recording.claim, [], 5, alerts=[replace(nonfinite(step=5), message="NaN, 2 of 3")]) == taken_back + 2
    assert _alerts(database, run_id) == [(5, 1, "NaN, 2 of 3")]
