"""Quantities of consecutive steps are equal when read from weights, live, in coarse levels and across a rollback."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import numpy as np
import pytest
import torch

from server.database.connection import Database
from server.database.models import BlockRow, Run, SeriesRow
from server.series import compaction, reading
from server.series.catalogue import read_catalogue
from server.series.events import events_after
from server.series.layout import Layout
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.detectors import Detectors
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.stability import LN_LARGEST
from stablessm_core.watch.recorder import ResumableRecorder
from tests.server.recording import claimed, run_of
from tests.server.storing import store_catalogue, store_flush, truncate

pytestmark = [pytest.mark.spread, pytest.mark.slow]

WIDTH, LENGTH = 3, 100
STEP, BUDGET = "ssm/0/relative_step", "ssm/0/overflow_budget"
LAYOUT = [
    (names.TRAIN_LOSS, 1), ("norms", 2), ("ssm/0/grad_over_weight", WIDTH), ("ssm/0/weight", WIDTH), ("state/0", WIDTH),
]  # fmt: skip


class Store:
    """A sink that writes to the database as a worker does."""

    def __init__(self, database: Database, run_id: int, attempt: int) -> None:
        self.database, self.run_id, self.attempt = database, run_id, attempt
        self.events: list[dict[str, tuple[np.ndarray, np.ndarray]]] = []
        self.layout: Layout | None = None
        self.seen = 0

    def open(self, series: list[SeriesSpec]) -> None:
        with self.database.write() as session:
            store_catalogue(session, self.run_id, self.attempt, series)

    def write(self, flush: Flush) -> None:
        with self.database.write() as session:
            store_flush(session, self.run_id, self.attempt, flush.blocks, flush.alerts, flush.step, None, flush.so_far)

    def checkpoint(self, step: int, path: Path, sha256: str) -> None: ...

    def truncate(self, to_step: int, reason: str) -> None:
        with self.database.write() as session:
            truncate(session, self.run_id, self.attempt, to_step + 1, reason)

    def needed_checkpoints(self) -> Collection[int]:
        return ()


class Training:
    """A recorder that records weights on a random walk past the boundary. `rows`: step -> (loss, ratio, weight)."""

    def __init__(self, store: Store, *, every: int = 1, seed: int = 0) -> None:
        self.rng, self.store, self.step = np.random.default_rng(seed), store, 0
        form = Form.of_map("direct", "discrete")
        layer = names.layer_catalogue(0, WIDTH, form)
        follows = names.following_catalogue(0, WIDTH, form, length=LENGTH, every_eigenvalue=every == 1)
        progress = names.scalar(names.LOSS_OVER_BEST, names.PROGRESS)
        self.recorder = ResumableRecorder(
            [names.scalar(names.TRAIN_LOSS), progress, *layer, *follows], store, layout=LAYOUT, every=every,
            reader=ColumnReader([LayerForm(0, "ssm.w", form, WIDTH)], Detectors(["ssm.w"])), flush_seconds=600,
            flush_steps=10_000,
        )  # fmt: skip
        self.weight = np.array([0.9, -0.95, 0.2], np.float32)
        self.rows: dict[int, tuple[float, np.ndarray, np.ndarray]] = {}

    def run(self, steps: int, flush: int = 37) -> None:
        for _ in range(steps):
            self.step += 1
            loss, ratio = (
                np.float32(np.exp(self.rng.standard_normal())),
                np.exp(self.rng.standard_normal(WIDTH), dtype=np.float32),
            )
            if self.step % 97 == 0:
                ratio[1] = np.inf
            self.rows[self.step] = float(loss), ratio, self.weight.copy()
            row = np.concatenate([[loss, 1, 1], ratio, self.weight, np.ones(WIDTH)]).astype(np.float32)
            self.recorder.record(self.step, torch.from_numpy(row))
            self.weight = (self.weight + 0.05 * self.rng.standard_normal(WIDTH)).astype(np.float32) * np.float32(0.98)
            if self.step % flush == 0:
                assert self.recorder.drain()
        assert self.recorder.drain()

    def roll_back(self, to_step: int, levels: dict[str, np.ndarray], weight: np.ndarray) -> None:
        self.recorder.truncate(to_step, f"back to {to_step}", levels)
        self.rows = {step: row for step, row in self.rows.items() if step <= to_step}
        self.step, self.weight = to_step, weight

    def weights(self) -> np.ndarray:
        return np.array([self.rows[step][2] for step in sorted(self.rows)], np.float64)

    def truth(self) -> dict[str, np.ndarray]:
        w = self.weights()
        distance = 1 - np.abs(w)
        with np.errstate(all="ignore"):
            moved = np.abs(np.diff(w, axis=0)) / distance[:-1]
        moved[distance[:-1] < 0] = np.nan
        return {STEP: moved, BUDGET: LENGTH * np.log(np.abs(w).max(axis=1, keepdims=True)) / LN_LARGEST}


@pytest.fixture
def store(sqlite: Database) -> Store:
    claim = claimed(sqlite, model__reparameterization__name="direct", model__d_state=WIDTH, train__steps=10_000)
    return Store(sqlite, claim.run_id, claim.attempt)


def read(store: Store, name: str, **query: object) -> reading.SeriesData:
    with store.database.read() as session:
        return reading.read_series(session, store.run_id, name, **query)  # type: ignore[arg-type]


def check(training: Training, *, first: int = 1) -> None:
    """Assert that raw values equal a direct computation and that every zoom is exactly the envelope of the raw values."""
    for name, truth in training.truth().items():
        raw = read(training.store, name, max_points=100_000)
        assert raw.value is not None
        assert raw.step.tolist() == list(range(first, first + len(truth)))
        np.testing.assert_allclose(raw.value, truth, rtol=1e-12, atol=1e-15)
        for points in (400, 70, 9):
            data, at = read(training.store, name, max_points=points), 0
            assert data.min is not None
            assert data.last_step is not None
            assert data.last_step[-1] == raw.step[-1]
            values = raw.value.astype(np.float32)
            finite = np.isfinite(values)
            for i, count in enumerate(data.count.tolist()):  # type: ignore[union-attr]
                part, good = values[at : at + count], finite[at : at + count]
                assert raw.step[at] == data.step[i]
                low = np.where(good.any(0), np.where(good, part, np.inf).min(0), np.nan)
                high = np.where(good.any(0), np.where(good, part, -np.inf).max(0), np.nan)
                np.testing.assert_array_equal(data.min[i], low)
                np.testing.assert_array_equal(data.max[i], high)  # type: ignore[index]
                np.testing.assert_array_equal(data.last[i], part[-1])  # type: ignore[index]
                np.testing.assert_array_equal(data.nonfinite[i], (~good).sum(0))  # type: ignore[index]
                at += count
            assert at == len(values)


def streamed(store: Store, limit: int, *, fresh: bool) -> dict[str, tuple[list[int], np.ndarray]]:
    """Every point that a live stream sends, in the order of the stream."""
    found: dict[str, tuple[list[int], list[np.ndarray]]] = {}
    with store.database.read() as session:
        layout, at, newest = Layout(session, store.run_id), 0, run_of(store.database, store.run_id).seq
        while at < newest:
            for event in events_after(session, store.run_id, at, limit, None if fresh else layout):
                for points in event.points:
                    steps, values = found.setdefault(points.name, ([], []))
                    steps += points.step.tolist()
                    values.append(points.value)
            at += limit
    return {name: (steps, np.concatenate(values)) for name, (steps, values) in found.items()}


def check_live(store: Store) -> None:
    for limit, fresh in ((1, True), (7, True), (64, False)):
        live = streamed(store, limit, fresh=fresh)
        for name in (STEP, BUDGET):
            stored = read(store, name, max_points=100_000)
            assert live[name][0] == stored.step.tolist()
            np.testing.assert_array_equal(live[name][1], stored.value)


def test_every_zoom_and_the_live_stream_equal_the_values_computed_from_the_weights(store: Store) -> None:
    training = Training(store)
    training.run(2_600)
    training.recorder.close()
    with store.database.read() as session:
        groups = {(r.group_name, r.level) for r in session.query(BlockRow.group_name, BlockRow.level).distinct()}
    assert ("ssm/0/derived", 1) in groups
    assert ("ssm/0/derived", 0) not in groups
    check(training)
    check_live(store)
    part = read(store, STEP, from_step=74, to_step=75, eigenvalues=[2])  # two steps from two different flushes
    np.testing.assert_allclose(part.value, training.truth()[STEP][73:75, 2:], rtol=1e-12)
    assert read(store, STEP, from_step=2_600).step.tolist() == []


@pytest.mark.parametrize("at", [160, 161, 128, 1])
def test_a_rollback_neither_loses_nor_repeats_a_step(store: Store, at: int) -> None:
    training = Training(store)
    training.run(at, flush=16)
    levels, weight = training.recorder.levels(), training.weight.copy()
    training.run(300 - at)
    training.roll_back(at, levels, weight)
    training.run(500)
    check(training)
    check_live(store)
    training.recorder.close()


def test_a_compacted_run_continues_from_its_checkpoint(store: Store) -> None:
    training = Training(store)
    training.run(2_048, flush=64)
    levels, weight = training.recorder.levels(), training.weight.copy()
    training.run(80)
    with store.database.write() as session:
        run = session.get_one(Run, store.run_id)
        run.status, run.finished_at = "cancelled", 1.0
    assert compaction.compact(store.database, store.run_id)
    check(training)
    check_live(store)
    with store.database.write() as session:
        session.get_one(Run, store.run_id).status = "running"
    training.roll_back(2_048, levels, weight)
    training.run(600)
    check(training)
    check_live(store)
    training.recorder.close()


def test_a_run_with_an_older_catalogue_reads_the_same_and_can_be_resumed(store: Store) -> None:
    training = Training(store)
    training.run(700)
    with store.database.write() as session:  # as the previous release stored it
        session.query(SeriesRow).filter(SeriesRow.group_name.in_(["ssm/0/derived", "progress"])).delete()
        session.query(BlockRow).filter(BlockRow.group_name.in_(["ssm/0/derived", "progress"])).delete()
    check(training)
    check_live(store)
    with store.database.read() as session:
        listed = {info.name: info for info in read_catalogue(session, store.run_id)}
    assert [listed[name].form["length"] for name in (STEP, BUDGET) if listed[name].form] == [LENGTH, LENGTH]
    levels = {key: array for key, array in training.recorder.levels().items() if not key.startswith("following")}
    resumed = Training(store, seed=1)
    resumed.rows, resumed.step, resumed.weight = training.rows, training.step, training.weight
    resumed.recorder.restore_levels(levels)
    resumed.run(700)
    check(resumed)
    check_live(store)


def test_a_run_recorded_every_third_step_has_an_overflow_budget_but_no_relative_step(store: Store) -> None:
    training = Training(store, every=3)
    training.run(400)
    levels, weight = training.recorder.levels(), training.weight.copy()
    training.run(130)
    training.roll_back(400, levels, weight)
    training.run(700)
    with store.database.read() as session:
        assert STEP not in {info.name for info in read_catalogue(session, store.run_id)}
    truth = training.truth()[BUDGET][::3]
    raw = read(store, BUDGET, max_points=10_000)
    np.testing.assert_allclose(raw.value, truth, rtol=1e-12, atol=1e-15)
    coarse = read(store, BUDGET, max_points=20)
    np.testing.assert_allclose(np.nanmax(coarse.max), truth.max(), rtol=1e-6)  # type: ignore[arg-type]
    assert coarse.count is not None
    assert int(coarse.count.sum()) == len(truth)
    training.recorder.close()


def test_the_run_s_row_stores_its_extremes_over_all_steps(store: Store) -> None:
    training = Training(store)
    training.run(300)
    run, truth = run_of(store.database, store.run_id), training.truth()
    ratios = np.array([row[1] for row in training.rows.values()])
    assert run.largest_ratio == pytest.approx(float(ratios[np.isfinite(ratios)].max()))
    assert run.largest_relative_step == pytest.approx(float(truth[STEP][np.isfinite(truth[STEP])].max()))
    assert run.nearest_distance == pytest.approx(float((1 - np.abs(training.weights())).min()))
    assert run.overflow_budget == pytest.approx(float(truth[BUDGET].max()))
    before = run.overflow_budget
    levels, weight = training.recorder.levels(), training.weight.copy()
    training.roll_back(300, levels, weight * 0)
    training.run(20)
    assert run_of(store.database, store.run_id).overflow_budget == before
    training.recorder.close()


def test_the_run_s_extremes_may_be_infinite_but_never_nan(store: Store) -> None:
    with store.database.write() as session:
        store_flush(session, 1, 1, [], (), 1, None, {"nearest_distance": -np.inf, "overflow_budget": np.inf})
        store_flush(session, 1, 1, [], (), 2, None, {"nearest_distance": 0.5})
    run = run_of(store.database, 1)
    assert (run.nearest_distance, run.overflow_budget, run.largest_ratio) == (-np.inf, np.inf, None)


def test_the_ratio_of_loss_to_best_loss_is_correct_across_a_rollback(store: Store) -> None:
    training = Training(store)
    training.run(50)
    levels, weight = training.recorder.levels(), training.weight.copy()
    training.run(50)
    training.roll_back(50, levels, weight)
    training.run(70)
    loss = np.array([training.rows[step][0] for step in sorted(training.rows)])
    stored = read(store, names.LOSS_OVER_BEST).value
    assert stored is not None
    np.testing.assert_allclose(stored[:, 0], loss / np.minimum.accumulate(loss), rtol=1e-6)
    training.recorder.close()


def test_the_overflow_budget_of_channels_follows_from_the_largest_step_size_at_every_zoom(store: Store) -> None:
    form = Form("direct", "continuous", "zoh", phase="half_plane", gate=True)
    layer = names.layer_catalogue(0, WIDTH, form, gates=1)
    follows = names.following_catalogue(0, WIDTH, form, length=LENGTH, every_eigenvalue=True)
    widths = {series.name: series.width for series in layer if not series.derived}
    recorder = ResumableRecorder(
        [names.scalar(names.TRAIN_LOSS), *layer, *follows],
        store,
        layout=[(names.TRAIN_LOSS, 1), ("norms", 2), *widths.items(), ("state/0", WIDTH)],
        reader=ColumnReader([LayerForm(0, "ssm.w", form, WIDTH)], Detectors(["ssm.w"])),
        flush_seconds=600,
        flush_steps=10_000,
    )
    rng, truth = np.random.default_rng(2), []
    for step in range(1, 701):
        weight = rng.standard_normal(WIDTH).astype(np.float32)
        gates = np.sort(np.exp(rng.standard_normal(3) - 3)).astype(np.float32)  # smallest, mean, largest step size
        values = {"weight": weight} | dict(zip(("gate_min", "gate_mean", "gate_max"), gates[:, None], strict=True))
        parts = [values.get(name.rpartition("/")[2], np.ones(width)) for name, width in widths.items()]
        recorder.record(step, torch.from_numpy(np.concatenate([np.ones(3), *parts, np.ones(WIDTH)]).astype(np.float32)))
        rate = float(weight.max())
        truth.append(LENGTH * rate * float(gates[2] if rate > 0 else gates[0]) / LN_LARGEST)
    recorder.close()
    raw, coarse = read(store, BUDGET, max_points=10_000), read(store, BUDGET, max_points=20)
    assert raw.value is not None
    assert coarse.max is not None
    np.testing.assert_allclose(raw.value[:, 0], truth, rtol=1e-12)
    np.testing.assert_allclose(coarse.max.max(), max(truth), rtol=1e-6)
    assert run_of(store.database, store.run_id).overflow_budget == pytest.approx(max(truth))
