"""The row that one C function writes equals the row from tensor operations: copies bit for bit, sums within rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stablessm_core.kernels import library
from stablessm_core.model import build_model
from stablessm_core.spec.config import parse_config
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.training.execution import prepare
from stablessm_core.training.optimizer import build_optimizer
from stablessm_core.training.step import TrainingStep
from stablessm_core.watch import probe as probe_module
from stablessm_core.watch.compiled_row_writer import CompiledRowWriter, make_row_writer
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.ring import Ring
from stablessm_core.watch.row_table import ROW, Columns, Section, StepInput
from stablessm_core.watch.watched_model import WatchedModel
from tests.core.watch.test_watched_records import Everything

pytestmark = pytest.mark.skipif(library.why_not_compiled() is not None, reason=str(library.why_not_compiled()))

LR = torch.tensor([0.1], dtype=torch.float64)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class BothWriters:
    """A model whose steps are recorded both by tensor operations and by the C function."""

    def __init__(self, model: nn.Module, *batch: Tensor, magnitudes: Sequence[str] = ()) -> None:
        self.model, self.batch, self.probe = model, batch, Probe(model, None, magnitudes)
        self.ring = Ring(sum(width for _, width in self.probe.layout), 2, torch.device("cpu"))
        self.one = CompiledRowWriter(self.probe, self.ring, LR, batch)

    def rows(self, loss: Tensor) -> tuple[np.ndarray, np.ndarray, float, float]:
        """(row by operations, row by the C function, and the gradient norm from each), as clipping uses the norm."""
        probe = self.probe
        parts = probe.gradients(), probe.states(), probe.gates(), self.batch
        wanted, norm = probe.row(probe.weights(), loss.detach(), LR, *parts)
        self.ring.buffer.fill_(-77.0)
        at = int(self.ring.cursor)
        got = self.one.write(loss)
        assert got.dtype == torch.float64
        assert int(self.ring.cursor) == (at + 1) % len(self.ring.buffer)
        assert (np.delete(self.ring.buffer.numpy(), at, axis=0) == -77.0).all()
        return wanted.numpy(), self.ring.buffer[at].numpy(), float(norm), float(got)

    def compare(self, loss: Tensor) -> None:
        wanted, got, norm, other = self.rows(loss)
        assert other == pytest.approx(norm, rel=1e-12, nan_ok=True)
        ends = np.cumsum([width for _, width in self.probe.layout])
        summed = {r.id for r in self.probe.records if r.record.weight is None}
        for (name, width), end in zip(self.probe.layout, ends, strict=True):
            pair = wanted[end - width : end], got[end - width : end]
            rounded = name in ("norms", names.GRAD_NORM, names.WEIGHT_NORM) or name.endswith("/dt")
            if rounded or any(name.startswith(f"ssm/{of}/") for of in summed):
                np.testing.assert_allclose(pair[1], pair[0], rtol=1e-6, err_msg=name)
            else:
                np.testing.assert_array_equal(pair[1], pair[0], err_msg=name)


def everything() -> BothWriters:
    both = BothWriters(Everything(), torch.randn(6, 12), torch.arange(6))
    both.model(both.batch[0]).backward()
    return both


PLACES: list[tuple[str, Callable[[Any], Tensor]]] = [
    *[
        (f"{what} of {name}", lambda model, name=name, what=what: getattr(getattr(model, name), what))
        for name in ("gated", "bias", "real", "imaginary", "log_dt", "projection", "offset")
        for what in ("data", "grad")
    ],
    ("constant", lambda model: model.decays),
    ("state", lambda model: model.last_state),
]


@pytest.mark.parametrize("value", [0.0, -0.0, NAN, INF, -INF, 1e-42, -3e38])
@pytest.mark.parametrize("place", PLACES, ids=[name for name, _ in PLACES])
@pytest.mark.slow
def test_both_row_writers_record_one_changed_number_in_any_tensor(
    place: tuple[str, Callable[[Any], Tensor]], value: float
) -> None:
    both = everything()
    place[1](both.model).view(-1)[1] = value
    both.compare(torch.tensor(1.5))


def test_both_row_writers_prefer_nan_to_infinity_in_either_order() -> None:
    for first, second in ((NAN, INF), (INF, NAN)):
        both = everything()
        for tensor in (both.model.last_state, both.model.gated.grad, both.model.projection.data):
            flat = tensor.view(-1)
            flat[0], flat[-1] = first, second
        both.compare(torch.tensor(first))


@pytest.mark.parametrize("missing", ["gated", "imaginary", "log_dt", "projection", "all"])
def test_a_missing_gradient_is_recorded_as_zero(missing: str) -> None:
    both = everything()
    for name, p in both.model.named_parameters():
        if missing in (name, "all"):
            p.grad = None
    both.compare(torch.tensor(NAN))


@pytest.mark.parametrize("frozen", ["gated", "imaginary", "log_dt", "offset"])
def test_a_frozen_parameter_is_recorded_with_a_gradient_of_zero(frozen: str) -> None:
    model = Everything()
    getattr(model, frozen).requires_grad_(False)
    both = BothWriters(model, torch.randn(6, 12), torch.arange(6))
    both.model(both.batch[0]).backward()
    both.compare(torch.tensor(1.0))


@pytest.mark.parametrize("bad", [None, NAN, INF, -INF])
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_both_row_writers_record_the_same_code_for_a_non_finite_batch(bad: float | None, where: int, dtype: torch.dtype) -> None:
    x, y = torch.ones(3, 7, dtype=dtype), torch.ones(3, 7)
    both = BothWriters(Everything(), x, y)
    both.model(torch.randn(6, 12)).backward()
    for tensor in (x, y)[slice(where) if where else slice(2)]:
        if bad is not None:
            tensor[1, 2] = bad
    both.compare(torch.tensor(1.0))


X, Y = names.LARGEST_INPUT, names.LARGEST_TARGET


@pytest.mark.parametrize("numbers", [(-7.5,), (INF, -9.0), (-INF,), (NAN,), (INF, NAN), (NAN, -INF), (3e38, -3.4e38), (-0.0,)])
@pytest.mark.parametrize("count", [1, 15, 16, 17, 40])
def test_both_row_writers_record_the_largest_numbers_of_a_batch(numbers: tuple[float, ...], count: int) -> None:
    both = BothWriters(nn.Linear(2, 2), torch.zeros(count), torch.full((3, 7), -2.5), magnitudes=(X, Y))
    x = both.batch[0]
    x[: len(numbers)] = torch.tensor(numbers[:count])
    x[:] = x.flip(0)  # the last numbers of 17 do not fill a vector
    both.compare(torch.tensor(1.0))
    given = numbers[:count]
    wanted = NAN if any(v != v for v in given) else max(map(abs, given))
    ends = np.cumsum([width for _, width in both.probe.layout])
    at = {name: int(end) - 1 for (name, _), end in zip(both.probe.layout, ends, strict=True)}
    got = both.rows(torch.tensor(1.0))[1]
    np.testing.assert_array_equal(got[[at[X], at[Y]]], np.array([wanted, 2.5], np.float32))


@pytest.mark.parametrize(
    ("x", "y", "magnitudes"),
    [
        (torch.arange(6), torch.tensor([1.0, -4.0]), (Y,)),
        (torch.tensor([1.0, -4.0]), torch.arange(6), (X,)),
        (torch.tensor([1.0, -4.0]), torch.tensor([2.0, NAN]), (Y,)),
        (torch.tensor([-6]), torch.tensor([2.0]), (X, Y)),
        (torch.tensor([1e300, 1.0], dtype=torch.float64), torch.tensor([2.0]), (X, Y)),
        (torch.tensor([3 - 4j]), torch.tensor([INF]), (X, Y)),
    ],
)
def test_the_largest_numbers_are_recorded_only_of_the_declared_parts_and_in_any_precision(
    x: Tensor, y: Tensor, magnitudes: tuple[str, ...]
) -> None:
    both = BothWriters(nn.Linear(2, 2), x, y, magnitudes=magnitudes)
    assert [name for name, _ in both.probe.layout if name in (X, Y)] == list(magnitudes)
    assert [series.name for series in both.probe.catalogue if series.group == names.MAGNITUDES] == list(magnitudes)
    both.compare(torch.tensor(1.0))


def test_the_writer_reads_gradients_states_and_losses_of_any_layout_and_precision() -> None:
    both = everything()
    model = both.model
    model.projection.grad = torch.randn(7, 3).T
    model.gated.grad = torch.randn(4, 6)[:, ::2]
    for state in (torch.randn(12, 6).T, torch.randn(2, 12).bfloat16(), torch.randn(2, 12).double(), None):
        model.last_state = state
        both.compare(torch.tensor(1.25, dtype=torch.bfloat16))


def test_a_model_without_records_still_gets_gradient_norms() -> None:
    both = BothWriters(nn.Linear(5, 3), torch.randn(2, 5), torch.randn(2, 3))
    both.model(both.batch[0]).sum().backward()
    both.compare(torch.tensor(1.0))


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("shape", [(3, 400), (300, 400), (70_000, 1)])
@pytest.mark.slow
def test_gradient_norms_neither_overflow_nor_underflow(shape: tuple[int, int], scale: float, threads: int) -> None:
    model = nn.Linear(shape[1], shape[0])
    both = BothWriters(model, torch.randn(2, 5))
    model.weight.grad = (torch.randn(shape) * scale).clamp(-3.4e38, 3.4e38)
    both.compare(torch.tensor(1.0))


def test_a_weight_counts_as_finite_up_to_1e18() -> None:
    model = nn.Linear(400, 300)
    both = BothWriters(model, torch.randn(2, 5))
    model.weight.data.fill_(1e18)
    model.bias.data[1] = 2e19
    _, row, *_ = both.rows(torch.tensor(1.0))
    assert np.isfinite(row[2:4]).tolist() == [True, False]


def test_every_number_of_threads_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 600), nn.Linear(600, 3))
    both = BothWriters(model, torch.randn(2, 300))
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    before, found = torch.get_num_threads(), set()
    try:
        for count in (1, 2, 3, 7):
            torch.set_num_threads(count)
            _, row, _, norm = both.rows(torch.tensor(1.0))
            found.add((row.tobytes(), norm))
    finally:
        torch.set_num_threads(before)
    assert len(found) == 1


def test_both_row_writers_summarize_wide_records_in_the_same_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "WIDE", 9)
    monkeypatch.setattr(names, "EXTREMES", 4)
    both = everything()
    assert [r.wide for r in both.probe.records] == [True, False, True, False, False]
    both.compare(torch.tensor(1.0))


@pytest.mark.parametrize("operation", ["take", ""])
def test_a_column_added_to_the_table_appears_in_the_layout_and_in_both_rows(
    operation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def columns(model: WatchedModel) -> list[Columns]:
        return [Columns((("again", 1),), operation, StepInput.LOSS)]

    added = Section(columns, lambda model, step: [step.loss.reshape(1)])
    monkeypatch.setattr(probe_module, "ROW", (*ROW[:3], added, *ROW[3:]))
    both = everything()
    assert ("again", 1) in both.probe.layout
    both.compare(torch.tensor(1.5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_a_model_of_another_precision_gets_no_compiled_row_writer(dtype: torch.dtype) -> None:
    probe = Probe(nn.Linear(3, 4).to(dtype))
    ring = Ring(sum(width for _, width in probe.layout), 2, torch.device("cpu"))
    assert make_row_writer(probe, ring, LR, ()) is None


def a_step(**model: Any) -> tuple[TrainingStep, Ring]:
    config = parse_config(
        {
            "task": {"name": "polynomial_memory", "length": 12},
            "model": {"n_layers": 2, "d_model": 8} | model,
            "optimizer": {"grad_clip": 0.3},
            "train": {"batch_size": 4, "device": "cpu"},
        }
    )
    task = get_task(config.task, Path("/nonexistent"))
    net = build_model(config, task)
    torch.manual_seed(0)
    probe = Probe(net)
    ring = Ring(sum(width for _, width in probe.layout), 10, torch.device("cpu"))
    batch = task.batch(1, 4, 0, torch.device("cpu"))
    return TrainingStep(net, task, build_optimizer(net, config.optimizer), probe, ring, batch=batch, grad_clip=0.3), ring


@pytest.mark.parametrize("layer", ["stable_ssm", "mamba", "lru", "s4d", "gla", "rg_lru", "gated_deltanet", "retnet"])
@pytest.mark.slow
def test_a_step_with_the_compiled_writer_records_and_trains_like_a_step_without_it(layer: str) -> None:
    (folded, folded_ring), (plain, plain_ring) = a_step(layers=[layer, layer]), a_step(layers=[layer, layer])
    assert prepare(folded, "auto", steps=10).mode == "eager"
    assert folded.row_writer is not None
    assert plain.row_writer is None
    for step, ring in ((folded, folded_ring), (plain, plain_ring)):
        for _ in range(4):
            step.run()
            ring.advance()
    got, wanted = folded_ring.take().wait(), plain_ring.take().wait()
    np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=1e-7)
    np.testing.assert_array_equal(got[:, 0], wanted[:, 0])  # losses: clipping norms differ too little to change them
