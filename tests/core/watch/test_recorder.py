"""The recorder delivers every number of every step in order, reports the exact fatal step, and never stops training."""

from __future__ import annotations

import functools
import logging
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import envelope
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.detectors import Detectors
from stablessm_core.telemetry.detectors.raised_elsewhere import ROLLED_BACK
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush, MemorySink
from stablessm_core.watch import recorder as recorder_module
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.recorder import Recorder, ResumableRecorder

SCALARS = [names.scalar(names.TRAIN_LOSS), names.scalar(names.LR)]
VECTOR = SeriesSpec("probe/vector", "probe", 3, "", "")
LAYOUT = [(names.LR, 1), (VECTOR.name, 3), (names.TRAIN_LOSS, 1)]  # not in catalogue order, because columns are found by name

# a watched layer of two eigenvalues with the map `best`
LAYER = names.layer_catalogue(0, 2, Form.of_map("best", "discrete"))
LAYER_LAYOUT = [(names.TRAIN_LOSS, 1), ("norms", 2)]
LAYER_LAYOUT += [(names.layer_series(0, "grad_over_weight"), 2), (names.layer_series(0, "weight"), 2), ("state/0", 2)]


@pytest.fixture(autouse=True)
def _no_dropped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes the recorder so patient that rows are not dropped when a busy machine pauses its thread for seconds."""
    monkeypatch.setattr(recorder_module, "PATIENCE", 100.0)


class Clock:
    """A clock for the recorder that the test controls."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(recorder_module, "perf_counter", clock)
    return clock


def wait_for_step(sink: MemorySink, step: int) -> None:
    deadline = time.monotonic() + 60
    while sink.step < step:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def layer_row(*, loss: float = 1.0, weight: float = 0.5, state: float = 1.0) -> torch.Tensor:
    return torch.tensor([loss, 1.0, 1.0, 0.1, 0.2, weight, 0.9, 2.0, state])


def layer_reader() -> ColumnReader:
    return ColumnReader([LayerForm(0, "ssm.w", Form.of_map("direct", "discrete"), 2)], Detectors(["ssm.w"]))


def run(sink: MemorySink, rows: torch.Tensor, **options: object) -> Recorder:
    recorder = Recorder([*SCALARS, VECTOR], sink, layout=LAYOUT, **options)  # type: ignore[arg-type]
    for step, row in enumerate(rows, start=1):
        recorder.record(step, row)
    assert recorder.close()
    return recorder


@pytest.mark.parametrize("flush_steps", [1, 7, 64])
def test_every_number_of_every_step_arrives_bit_for_bit_in_order(flush_steps: int) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).integers(0, 2**32, (1000, 5), dtype=np.uint32).view(np.float32))
    sink = MemorySink()
    recorder = run(sink, rows, flush_steps=flush_steps)
    for name, columns in ((names.LR, slice(0, 1)), (VECTOR.name, slice(1, 4)), (names.TRAIN_LOSS, slice(4, 5))):
        steps, values = sink.series(name)
        assert np.array_equal(steps, np.arange(1, 1001))
        assert np.array_equal(values.view(np.uint32), rows[:, columns].numpy().view(np.uint32))
    assert (recorder.dropped, recorder.errors, sink.step) == (0, 0, 1000)


def test_summary_levels_are_sent_together_with_the_raw_blocks() -> None:
    rows = torch.randn(2500, 5, generator=torch.Generator().manual_seed(0))
    sink = MemorySink()
    run(sink, rows)
    (level,) = [b for b in sink.blocks if b.level == 1 and b.group == "probe"]
    assert (level.first_step, level.stride, level.point_count) == (1, 16, 128)
    np.testing.assert_array_equal(level.values, envelope(rows[:2048, 1:4].numpy().T, 16))


def test_the_every_option_keeps_the_same_steps_no_matter_when_rows_are_flushed() -> None:
    rows = torch.arange(500.0).reshape(100, 5)
    sink = MemorySink()
    run(sink, rows, every=7, flush_steps=5)
    steps, values = sink.series(VECTOR.name)
    assert np.array_equal(steps, np.arange(1, 101, 7))
    assert np.array_equal(values, rows[::7, 1:4].numpy())


def test_the_first_step_is_written_immediately_and_later_steps_within_the_flush_time(clock: Clock) -> None:
    sink = MemorySink()
    recorder = Recorder([*SCALARS, VECTOR], sink, layout=LAYOUT, flush_seconds=0.05)
    recorder.record(1, torch.zeros(5))
    recorder.record(2, torch.zeros(5))
    wait_for_step(sink, 1)
    assert sink.step == 1
    clock.now += 0.06
    recorder.record(3, torch.zeros(5))
    wait_for_step(sink, 3)
    recorder.close()


def test_gauges_are_read_at_each_flush_and_apply_to_all_steps_of_the_flush() -> None:
    seen: list[int] = []

    def rate(rows: int, seconds: float) -> float:
        assert seconds > 0
        seen.append(rows)
        return float(len(seen))

    sink = MemorySink()
    recorder = Recorder(
        [*SCALARS, names.scalar(names.TRAIN_RATE)],
        sink,
        layout=[(names.TRAIN_LOSS, 1), (names.LR, 1)],
        gauges={names.TRAIN_RATE: rate},
        flush_seconds=60,
    )
    for step in range(1, 131):
        recorder.record(step, torch.zeros(2))
        if step in (1, 65):
            recorder.drain()
    recorder.close()
    _, values = sink.series(names.TRAIN_RATE)
    assert sum(seen) == 130
    assert np.array_equal(values[:, 0], np.repeat(np.arange(1.0, len(seen) + 1), seen))
    assert sink.steps_per_second is not None
    assert sink.steps_per_second > 0


def test_the_recorder_refuses_a_gap_between_steps() -> None:
    recorder = Recorder(SCALARS, MemorySink(), layout=[(names.TRAIN_LOSS, 1), (names.LR, 1)], flush_seconds=60)
    recorder.record(1, torch.zeros(2))
    recorder.drain()
    recorder.record(2, torch.zeros(2))
    with pytest.raises(ValueError, match="step is 4; expected 3"):
        recorder.record(4, torch.zeros(2))
    recorder.close()


def test_a_catalogue_that_does_not_match_the_layout_is_refused() -> None:
    with pytest.raises(ValueError, match="width 3; its columns are 2"):
        Recorder([VECTOR], MemorySink(), layout=[(VECTOR.name, 2)])
    with pytest.raises(ValueError, match="needs a column reader"):
        Recorder(LAYER, MemorySink(), layout=LAYER_LAYOUT)


def test_nothing_after_the_fatal_step_is_kept_even_if_the_flush_comes_late() -> None:
    sink = MemorySink()
    recorder = Recorder([SCALARS[0], *LAYER], sink, layout=LAYER_LAYOUT, reader=layer_reader(), halt=True, flush_seconds=60)
    for step in range(1, 151):
        recorder.record(step, layer_row(state=float("inf") if step >= 70 else 1.0, loss=float("nan") if step > 70 else 1.0))
    recorder.close()
    assert recorder.fatal is not None
    fatal = recorder.fatal
    assert (fatal.kind, fatal.step, fatal.layer, fatal.eigenvalue) == ("nonfinite_state", 70, 0, 1)
    assert (fatal.tensor, fatal.value) == ("ssm.state", float("inf"))
    assert sink.series(names.TRAIN_LOSS)[0][-1] == 70
    assert [a.kind for a in sink.alerts] == ["nonfinite_state"]
    assert recorder.latest[names.TRAIN_LOSS] == 1.0


def test_the_fatal_step_is_kept_even_if_every_would_skip_it() -> None:
    sink = MemorySink()
    recorder = Recorder([SCALARS[0], *LAYER], sink, layout=LAYER_LAYOUT, reader=layer_reader(), halt=True, every=10)
    for step in range(1, 41):
        recorder.record(step, layer_row(loss=float("nan") if step >= 25 else 1.0))
    recorder.close()
    assert sink.series(names.TRAIN_LOSS)[0].tolist() == [1, 11, 21, 25]
    assert [(a.kind, a.step) for a in sink.alerts] == [("nonfinite_loss", 25)]


def test_derived_columns_are_stored_in_the_levels_but_not_in_the_raw_blocks() -> None:
    sink = MemorySink()
    recorder = Recorder([SCALARS[0], *LAYER], sink, layout=LAYER_LAYOUT, reader=layer_reader())
    for step in range(1, 2049):
        recorder.record(step, layer_row(weight=-0.25))
    recorder.close()
    raw = next(b for b in sink.blocks if b.group == "ssm/0" and b.level == 0)
    level = next(b for b in sink.blocks if b.group == "ssm/0" and b.level == 1)
    assert (raw.values.shape[0], level.values.shape[0]) == (4, 8)
    np.testing.assert_allclose(level.values[4:, 2, 0], [-0.25, 0.9, 0.75, 0.1], rtol=1e-6)


def test_rewinding_leaves_the_same_record_as_a_run_without_the_rewound_steps() -> None:
    def record(recorder: ResumableRecorder, first: int, last: int, scale: float) -> None:
        for step in range(first, last + 1):
            recorder.record(step, layer_row(loss=scale * step, weight=0.5 + scale * step * 1e-6))

    straight, rewound = MemorySink(), MemorySink()
    for sink in (straight, rewound):
        recorder = ResumableRecorder([SCALARS[0], *LAYER], sink, layout=LAYER_LAYOUT, reader=layer_reader(), halt=True)
        record(recorder, 1, 1000, 1.0)
        if sink is rewound:
            recorder.drain()
            levels = recorder.levels()
            record(recorder, 1001, 2500, 7.0)  # past the end of a level block
            recorder.record(2501, layer_row(loss=float("nan")))
            recorder.drain()
            assert recorder.fatal is not None
            assert any(b.level == 1 for b in sink.blocks)
            recorder.truncate(1000, "test", levels)
            assert recorder.fatal is None
        record(recorder, 1001, 4200, 1.0)
        recorder.close()
    assert rewound.rollbacks == [(1000, "test")]
    for name in (names.TRAIN_LOSS, names.layer_series(0, "weight")):
        for a, b in zip(straight.series(name), rewound.series(name), strict=True):
            np.testing.assert_array_equal(a, b)
    coarse = [[b for b in sink.blocks if b.level and b.group == "ssm/0"] for sink in (straight, rewound)]
    assert len(coarse[0]) == len(coarse[1]) == 2
    for a, b in zip(*coarse, strict=True):
        assert (a.first_step, a.stride) == (b.first_step, b.stride)
        np.testing.assert_array_equal(a.values, b.values)


class Failing(MemorySink):
    def write(self, flush: Flush) -> None:
        if 100 < flush.step < 300:
            raise ConnectionError("the database is away")
        super().write(flush)


def test_a_failing_sink_loses_only_the_failed_flushes_and_logs_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    sink = Failing()
    with caplog.at_level(logging.WARNING):
        recorder = Recorder([*SCALARS, VECTOR], sink, layout=LAYOUT, flush_steps=10, flush_seconds=60)
        for step in range(1, 501):
            recorder.record(step, torch.full((5,), float(step)))
            if step % 10 == 0:
                recorder.drain()
        recorder.close()
    steps, values = sink.series(names.TRAIN_LOSS)
    assert recorder.dropped == 500 - len(steps)
    assert recorder.dropped == 190  # the dropped flushes are those of steps 110 to 290
    assert np.array_equal(values[:, 0], steps)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "the database is away" in caplog.text


class Stuck(MemorySink):
    def __init__(self) -> None:
        super().__init__()
        self.let_go = threading.Event()

    def write(self, flush: Flush) -> None:
        self.let_go.wait(250)
        super().write(flush)


@pytest.mark.slow
def test_a_stuck_sink_blocks_training_once_and_the_recorder_counts_the_dropped_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recorder_module, "PATIENCE", 0.2)
    sink = Stuck()
    recorder = Recorder([*SCALARS, VECTOR], sink, layout=LAYOUT, flush_steps=4)
    began = time.monotonic()
    for step in range(1, 2001):
        recorder.record(step, torch.full((5,), float(step)))
    assert time.monotonic() - began < 60  # 500 flushes that each waited for 0.2 s would take 100 s
    assert recorder.dropped > 1000
    sink.let_go.set()
    assert recorder.drain()
    for step in range(2001, 2101):
        recorder.record(step, torch.full((5,), float(step)))
    assert recorder.close()
    steps, values = sink.series(names.TRAIN_LOSS)
    assert len(steps) + recorder.dropped == 2100
    assert np.array_equal(values[:, 0], steps)
    assert np.array_equal(steps[-100:], np.arange(2001, 2101))


def test_logged_values_alerts_and_checkpoints_reach_the_sink_in_step_order(tmp_path: Path) -> None:
    calls: list[tuple[str, int]] = []

    class Ordered(MemorySink):
        def write(self, flush: Flush) -> None:
            groups = {b.group for b in flush.blocks}
            calls.append(("eval" if names.EVAL in groups else "alert" if flush.alerts else "steps", flush.step))
            super().write(flush)

        def checkpoint(self, step: int, path: Path, sha256: str) -> None:
            calls.append(("checkpoint", step))

    sink = Ordered()
    catalogue = [*SCALARS, VECTOR, names.scalar(names.EVAL_LOSS, names.EVAL)]
    recorder = ResumableRecorder(catalogue, sink, layout=LAYOUT, flush_seconds=60)
    for step in range(1, 31):
        recorder.record(step, torch.zeros(5))
        if step == 20:
            recorder.log(step, names.EVAL, {names.EVAL_LOSS: 0.25})
            recorder.checkpoint(step, tmp_path, "")
            recorder.alert(step, ROLLED_BACK.alert(step=20, message="test"))
    recorder.close()
    tail = calls[calls.index(("steps", 20)) :]
    assert tail == [("steps", 20), ("eval", 20), ("checkpoint", 20), ("alert", 20), ("steps", 30)]
    assert sink.series(names.EVAL_LOSS)[1].tolist() == [[0.25]]


def test_rates_exclude_the_time_of_a_pause(clock: Clock) -> None:
    sink = MemorySink()
    recorder = Recorder(
        [names.scalar(names.TRAIN_LOSS), names.scalar(names.STEP_TIME)],
        sink,
        layout=[(names.TRAIN_LOSS, 1)],
        gauges={names.STEP_TIME: lambda rows, seconds: seconds / rows},
    )
    for step in range(1, 101):
        clock.now += 0.001
        recorder.record(step, torch.zeros(1))
        if step == 1:
            # The first row is flushed alone, because its step time also covers the initial flush interval.
            recorder.drain()
        if step == 50:
            with recorder.pause():
                clock.now += 0.5
    recorder.close()
    _, seconds = sink.series(names.STEP_TIME)
    np.testing.assert_allclose(seconds[1:], 0.001, rtol=1e-6)
    assert sink.steps_per_second == pytest.approx(1000)


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("shape", [(3, 400), (300, 400)])  # small tensors are copied into chunks; large ones are read in place
def test_the_norm_of_a_gradient_neither_overflows_nor_underflows(shape: tuple[int, int], scale: float) -> None:
    model = torch.nn.Linear(shape[1], shape[0], bias=False)
    probe = Probe(model)
    gradient = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * scale).clamp(-3.4e38, 3.4e38)
    _, norm = probe.row(probe.weights(), torch.ones(()), torch.ones(1), [gradient], [])
    assert norm.dtype == torch.float64
    assert float(norm) == pytest.approx(float(gradient.double().norm()), rel=1e-6)


class Readers(TorchDispatchMode):
    """Counts, for each of the given tensors, the operations that read its memory."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        super().__init__()
        self.counts = {t.untyped_storage().data_ptr(): 0 for t in tensors}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for at in {t.untyped_storage().data_ptr() for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}:
            if at in self.counts and not func.is_view:
                self.counts[at] += 1
        return func(*args, **(kwargs or {}))


def test_one_operation_reads_all_weights_and_one_operation_reads_each_gradient() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Linear(400, 3))
    probe = Probe(model)
    gradients = [torch.ones_like(p) for p in model.parameters()]
    with Readers([*model.parameters(), *gradients]) as readers:
        probe.row(probe.weights(), torch.ones(()), torch.ones(1), gradients, [])
    assert list(readers.counts.values()) == [1] * 5  # all weights share one piece of memory


@pytest.mark.parametrize("outputs", [300, 3])
def test_a_weight_counts_as_finite_up_to_1e18(outputs: int) -> None:
    model = torch.nn.Linear(400, outputs)
    probe = Probe(model)
    model.weight.data.fill_(1e18)
    model.bias.data[1] = 2e19
    assert probe.weights().norms.isfinite().tolist() == [True, False]


def test_parameters_keep_values_and_identities_when_they_move_into_shared_memory() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Linear(400, 3))
    before = [(p, p.detach().clone()) for p in model.parameters()]
    probe = Probe(model)
    for p, (same, values) in zip(model.parameters(), before, strict=True):
        assert p is same
        assert torch.equal(p, values)
    # The probe must see a value that is written to a parameter.
    model[1].bias.data.fill_(1e30)
    assert probe.weights().norms.isfinite().tolist() == [True, True, True, False]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_non_finite_element_of_a_large_gradient_changes_the_recorded_row(value: float) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Linear(400, 3))
    probe = Probe(model)
    row = functools.partial(probe.row, probe.weights(), torch.ones(()), torch.ones(1), states=[])
    fine, norm = row(gradients=[torch.ones_like(p) for p in model.parameters()])
    assert fine.isfinite().all()
    assert float(norm) == pytest.approx(sum(p.numel() for p in model.parameters()) ** 0.5)
    gradients = [torch.ones_like(p) for p in model.parameters()]
    gradients[0][7, 11] = value
    bad, norm = row(gradients=gradients)
    names = dict(zip([f"weight of {n}" for n in probe.parameter_names] + probe.parameter_names, bad[2 : 2 + 8], strict=True))
    assert [name for name, number in names.items() if not number.isfinite()] == ["0.weight"]
    assert not norm.isfinite()
    model[0].weight.data[5, 5] = value
    weights = probe.weights().norms
    assert weights.isfinite().tolist() == [False, True, True, True]
