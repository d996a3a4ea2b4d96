"""Reading series and events returns the numbers that were written, at every zoom."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event, func, select

from server.database.connection import Database
from server.database.models import BlockRow
from server.database.payloads import DamagedPayload
from server.lifecycle import transitions as lifecycle
from server.series import reading
from server.series.block_cache import run_queries
from server.series.catalogue import read_catalogue
from server.series.events import events_after
from server.series.layout import Layout
from server.series.plans import BucketsPlan, Selection
from server.series.reading import SeriesData
from server.series.recording import store_checkpoint
from stablessm_core.telemetry.blocks import BUCKET
from stablessm_core.telemetry.detectors.raised_elsewhere import WORKER_LOST
from tests.server.recording import Recording, claim, claimed, nonfinite, submitted
from tests.server.storing import truncate

pytestmark = pytest.mark.both_engines

QUICK = settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


def read(database: Database, run_id: int, name: str, **options: object) -> SeriesData:
    with database.read() as session:
        return reading.read_series(session, run_id, name, **options)  # type: ignore[arg-type]


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32 if values.dtype == np.float32 else np.uint64)


def check_envelope(data: SeriesData, steps: np.ndarray, truth: np.ndarray, max_points: int) -> None:
    """Assert that each bucket agrees with numpy on exactly its steps, and that the buckets together contain each step once."""
    assert data.value is None
    assert 1 <= len(data.step) <= max_points
    assert data.step[0] == steps[0]
    assert data.last_step[-1] == steps[-1]
    assert data.count.sum() == len(steps)
    with np.errstate(over="ignore"):
        truth = truth.astype(np.float32)
    at = 0
    for i, n in enumerate(data.count):
        part = truth[at : at + n]
        assert (data.step[i], data.last_step[i]) == (steps[at], steps[at + n - 1])
        finite = np.isfinite(part)
        shown = np.where(finite, part, np.nan)
        np.testing.assert_array_equal(data.min[i], np.fmin.reduce(shown, axis=0))
        np.testing.assert_array_equal(data.max[i], np.fmax.reduce(shown, axis=0))
        np.testing.assert_array_equal(data.nonfinite[i], (~finite).sum(axis=0))
        np.testing.assert_array_equal(bits(data.last[i]), bits(part[-1]))
        at += n


def test_raw_series_are_read_back_bit_for_bit(database: Database) -> None:
    recording = Recording(database, claimed(database), layers=2)
    for points in (1, 64, 3, 200):
        recording.write(points)
    for name, truth in recording.truth.items():
        data = read(database, recording.claim.run_id, name)
        assert data.step.tolist() == list(range(1, 269))
        assert data.value.dtype == truth.dtype
        np.testing.assert_array_equal(bits(data.value), bits(truth), err_msg=name)


@QUICK
@given(
    flushes=st.lists(st.integers(1, 300), min_size=1, max_size=12),
    every=st.sampled_from([1, 7]),
    form=st.sampled_from([("best", "discrete"), ("exp", "continuous"), ("direct", "discrete")]),
    max_points=st.integers(1, 400),
    span=st.tuples(st.floats(-0.1, 1.1), st.floats(-0.1, 1.1)),
    seed=st.integers(0, 100),
)
@pytest.mark.slow
def test_every_range_of_steps_at_every_zoom_agrees_with_the_recorded_values(
    sqlite: Database,
    flushes: list[int],
    every: int,
    form: tuple[str, str],
    max_points: int,
    span: tuple[float, float],
    seed: int,
) -> None:
    name, kind = form
    own = claimed(sqlite, model__reparameterization__name=name, model__reparameterization__time=kind)
    recording = Recording(sqlite, own, width=3, every=every, first=every, seed=seed)
    for points in flushes:
        recording.write(points)
    steps = recording.steps
    low, high = sorted(int(s * steps[-1]) for s in span)
    inside = (steps >= low) & (steps <= high)
    for series, truth in recording.truth.items():
        data = read(sqlite, own.run_id, series, from_step=low, to_step=high, max_points=max_points)
        if inside.sum() <= max_points:
            assert data.step.tolist() == steps[inside].tolist()
            np.testing.assert_array_equal(bits(data.value), bits(truth[inside]))
        else:
            check_envelope(data, steps[inside], truth[inside], max_points)


@pytest.mark.slow
def test_reading_many_runs_together_equals_reading_each_run_alone(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = ((300, 1400), (1,), (40,), (900, 2500, 700), ())
    runs = [Recording(database, claimed(database), layers=1 + i % 3, every=1 + i % 2, seed=i) for i in range(len(flushes))]
    for recording, points in zip(runs, flushes, strict=True):
        for n in points:
            recording.write(n)
    runs[3].next += 50  # telemetry of 50 steps is dropped
    runs[3].write(333)
    ids = [recording.claim.run_id for recording in runs]
    for together in (reading.BATCH_NUMBERS, 1):
        monkeypatch.setattr(reading, "BATCH_NUMBERS", together)
        for max_points in (20, 400):
            with database.read() as session:
                found = reading.recorded_layouts(session, ids, name="train/loss", kinds=("grad_over_weight", "weight"))
                chosen = [Selection(layout, row) for layout in found.values() for row in layout.series.values()]
                read_together = reading.read_many(session, chosen, max_points)
                alone = [reading.read_series(session, one.run_id, one.row.name, max_points=max_points) for one in chosen]
            assert [len(of.series) for of in found.values()] == [1 + 2 * recording.layers for recording in runs]
            for data, own in zip(read_together, alone, strict=True):
                for name, values in vars(own).items():
                    other = getattr(data, name)
                    assert type(other) is type(values)
                    if isinstance(values, np.ndarray):
                        assert (other.dtype, other.shape, other.tobytes()) == (values.dtype, values.shape, values.tobytes())
                    else:
                        assert other == values


def test_reading_many_runs_takes_as_many_queries_as_reading_one_run(sqlite: Database) -> None:
    ids = []
    for i in range(12):
        recording = Recording(sqlite, claimed(sqlite), seed=i)
        recording.write(900 + 37 * i)
        ids.append(recording.claim.run_id)
    statements: list[str] = []
    event.listen(sqlite._reader, "before_cursor_execute", lambda *args: statements.append(args[2]))
    with sqlite.read() as session:
        found = reading.recorded_layouts(session, ids, kinds=("grad_over_weight",))
        data = reading.read_many(session, [Selection(of, of.find("ssm/0/grad_over_weight")) for of in found.values()], 50)
    assert all(48 <= len(one.step) <= 50 for one in data)
    # Queries for positions, extents, level 1, and the finer blocks at its ends.
    assert len([text for text in statements if text.startswith("SELECT")]) == 4


def test_a_long_run_is_read_from_its_coarse_levels(sqlite: Database) -> None:
    own = claimed(sqlite)
    recording = Recording(sqlite, own, width=2)
    for points in (3000, 30_000, 7000, 33_333):
        recording.write(points)
    steps = recording.steps
    for max_points in (1000, 100, 7):
        data = read(sqlite, own.run_id, "ssm/0/boundary_distance", max_points=max_points)
        check_envelope(data, steps, recording.truth["ssm/0/boundary_distance"], max_points)
        assert len(data.step) >= max_points / 2 - 1
    inside = (steps >= 20_001) & (steps <= 60_000)
    data = read(sqlite, own.run_id, "ssm/0/weight", from_step=20_001, to_step=60_000, max_points=300)
    check_envelope(data, steps[inside], recording.truth["ssm/0/weight"][inside], 300)
    with sqlite.write() as session:  # damages the raw blocks that coarse levels cover, because they must not be read
        before = reading.read_series(session, own.run_id, "ssm/0/weight", max_points=500)
        covered = session.scalar(select(func.max(BlockRow.last_step)).where(BlockRow.level == 1, BlockRow.group_name == "ssm/0"))
        for row in session.scalars(select(BlockRow).where(BlockRow.level == 0, BlockRow.last_step <= covered)):
            row.payload = b"damaged"
        after = reading.read_series(session, own.run_id, "ssm/0/weight", max_points=500)
        np.testing.assert_array_equal(bits(after.last), bits(before.last))
        with pytest.raises(DamagedPayload, match="their checksum differs"):
            reading.read_series(session, own.run_id, "ssm/0/weight", max_points=50_000)


@pytest.mark.slow
def test_a_series_has_no_gap_after_rollbacks_and_resumes(database: Database) -> None:
    own = claimed(database)
    recording = Recording(database, own, width=2)
    recording.write(5000)
    with database.write() as session:
        truncate(session, own.run_id, own.attempt, 2500, "rolled back")
    recording.cut(2500)
    recording.write(3000)
    with database.write() as session:
        store_checkpoint(session, own.run_id, own.attempt, 5000, "x", "0" * 64)
        lifecycle.release(session, own.run_id, own.attempt, "lost", loss=WORKER_LOST)
    recording.claim = claim(database)
    recording.cut(5001)
    recording.write(10)
    recording.write(2500)
    for name, truth in recording.truth.items():
        data = read(database, own.run_id, name, max_points=10_000)
        assert data.step.tolist() == list(range(1, 7511))
        np.testing.assert_array_equal(bits(data.value), bits(truth))
        for max_points in (400, 60):
            check_envelope(read(database, own.run_id, name, max_points=max_points), recording.steps, truth, max_points)


def test_chosen_eigenvalues_equal_the_columns_of_the_whole_series(sqlite: Database) -> None:
    own = claimed(sqlite, model__reparameterization__time="continuous")
    recording = Recording(sqlite, own, width=6)
    recording.write(3000)
    for name in ("grad_over_weight", "eigenvalue"):
        for max_points in (5000, 200):
            whole = read(sqlite, own.run_id, f"ssm/0/{name}", max_points=max_points)
            part = read(sqlite, own.run_id, f"ssm/0/{name}", max_points=max_points, eigenvalues=[4, 0, 4])
            assert part.eigenvalues.tolist() == [4, 0, 4]
            for field in ("value", "min", "max", "last", "nonfinite"):
                if getattr(whole, field) is not None:
                    np.testing.assert_array_equal(getattr(part, field), getattr(whole, field)[:, [4, 0, 4]])


@pytest.mark.parametrize(("eigenvalue", "allowed"), [(6, "0 to 5"), (-1, "0 to 5")])
def test_an_eigenvalue_out_of_range_is_refused(sqlite: Database, eigenvalue: int, allowed: str) -> None:
    recording = Recording(sqlite, claimed(sqlite), width=6)
    with pytest.raises(ValueError, match=allowed):
        read(sqlite, recording.claim.run_id, "ssm/0/weight", eigenvalues=[eigenvalue])


def test_errors_name_the_missing_run_or_series_and_the_invalid_option(sqlite: Database) -> None:
    recording = Recording(sqlite, claimed(sqlite))
    run_id = recording.claim.run_id
    with pytest.raises(LookupError, match="no run 99"):
        read(sqlite, 99, "train/loss")
    with pytest.raises(LookupError, match="no series 'train/lost'"):
        read(sqlite, run_id, "train/lost")
    with pytest.raises(ValueError, match="max_points is 0"):
        read(sqlite, run_id, "train/loss", max_points=0)


def test_a_range_without_recorded_steps_is_empty(database: Database) -> None:
    recording = Recording(database, claimed(database), every=100, first=100)
    run_id = recording.claim.run_id
    for name, width in (("train/loss", 1), ("ssm/0/eigenvalue", 4)):
        assert read(database, run_id, name).value.shape == (0, width)
    recording.write(5)
    for span in ({"from_step": 501}, {"to_step": 99}, {"from_step": 101, "to_step": 199}):
        for max_points in (1, 1000):
            data = read(database, run_id, "ssm/0/eigenvalue", max_points=max_points, **span)
            assert (len(data.step), data.value.shape) == (0, (0, 4)), span


def test_the_catalogue_counts_the_recorded_points(database: Database) -> None:
    claim = claimed(database, model__reparameterization__time="continuous", telemetry__every=2)
    recording = Recording(database, claim, every=2, first=2)
    recording.write(30)
    recording.write(5)
    with database.read() as session:
        listed = read_catalogue(session, recording.claim.run_id)
        with pytest.raises(LookupError):
            read_catalogue(session, 99)
    assert {i.name: (i.width, i.first_step, i.last_step, i.points, i.derived) for i in listed} == {
        "train/loss": (1, 2, 70, 35, False),
        "ssm/0/grad_over_weight": (4, 2, 70, 35, False),
        "ssm/0/weight": (4, 2, 70, 35, False),
        "ssm/0/dt": (4, 2, 70, 35, False),
        "ssm/0/eigenvalue": (4, 2, 70, 35, True),
        "ssm/0/boundary_distance": (4, 2, 70, 35, True),
        "ssm/0/overflow_budget": (1, 2, 70, 35, True),
    }
    assert all(i.meaning for i in listed)


def test_events_are_complete_and_in_order_and_can_be_read_from_any_position(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(20)
    recording.write(7, [nonfinite(step=25)])
    run_id = recording.claim.run_id
    with database.write() as session:
        lifecycle.finish(session, run_id, recording.claim.attempt, "diverged", "it is NaN")
    with database.read() as session:
        events = events_after(session, run_id, 0)
        assert [e.seq for e in events] == [1, 2, 3, 4, 5]
        assert [e.transition.status if e.transition else None for e in events] == ["queued", "running", None, None, "diverged"]
        assert [len(e.alerts) for e in events] == [0, 0, 0, 1, 0]
        assert (events[3].attempt, events[3].last_step) == (1, 27)
        assert [e.seq for e in events_after(session, run_id, 2, limit=2)] == [3, 4]
        assert events_after(session, run_id, 5) == []
    for name, truth in recording.truth.items():
        parts = [p for e in events for p in e.points if p.name == name]
        assert np.concatenate([p.step for p in parts]).tolist() == list(range(1, 28))
        np.testing.assert_array_equal(bits(np.concatenate([p.value for p in parts])), bits(truth))


def test_events_omit_points_that_were_rolled_back(database: Database) -> None:
    recording = Recording(database, claimed(database))
    recording.write(10)
    recording.write(10)
    with database.write() as session:
        truncate(session, recording.claim.run_id, recording.claim.attempt, 6, "rolled back")
    recording.cut(6)
    recording.write(3)
    with database.read() as session:
        events = events_after(session, recording.claim.run_id, 2)
    assert [(e.seq, e.points[0].step.tolist() if e.points else None) for e in events] == [
        (3, [1, 2, 3, 4, 5]),
        (5, None),
        (6, [6, 7, 8]),
    ]
    assert events[1].transition.truncated_from == 6


@pytest.mark.slow
def test_a_million_steps_are_read_from_few_stored_points(sqlite: Database) -> None:
    """1,000 buckets of a million steps come from the coarsest levels and a tail, not from 1,000,000 points."""
    own = claimed(sqlite)
    recording = Recording(sqlite, own, width=1, weird=False)
    for _ in range(10):
        recording.write(100_000)
    with sqlite.read() as session:
        layout = Layout(session, own.run_id)
        plan = BucketsPlan(Selection(layout, layout.find("ssm/0/weight")), 2, 1, 1_000_000)
        [buckets] = run_queries(session, [plan])
        data = reading.read_series(session, own.run_id, "ssm/0/weight", max_points=1000, layout=layout)
    assert buckets.points.sum() == 1_000_000
    assert len(buckets.first) < 1_000_000 // BUCKET**2 + 2 * BUCKET * 128
    check_envelope(data, recording.steps, recording.truth["ssm/0/weight"], 1000)


def test_a_queued_run_has_an_empty_catalogue(sqlite: Database) -> None:
    run_id = submitted(sqlite)
    with sqlite.read() as session:
        assert read_catalogue(session, run_id) == []
        assert [e.seq for e in events_after(session, run_id, 0)] == [1]
        assert events_after(session, 99, 0) == []
