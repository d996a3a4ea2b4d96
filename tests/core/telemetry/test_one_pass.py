"""The row that one C function makes is the row that operations make: exact numbers to the bit, sums within rounding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from stablessm_core.compiled import library
from stablessm_core.config import parse_config
from stablessm_core.model import build_model
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import one_pass
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.probe import Probe
from stablessm_core.telemetry.ring import Ring
from stablessm_core.training.execution import prepare
from stablessm_core.training.optimizer import build_optimizer
from stablessm_core.training.step import TrainingStep
from tests.core.telemetry.test_records import Everything

pytestmark = pytest.mark.skipif(library.why_not_compiled() is not None, reason=str(library.why_not_compiled()))

LR = torch.tensor([0.1], dtype=torch.float64)
NAN, INF = float("nan"), float("inf")


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


class Both:
    """A model whose steps are recorded in both ways."""

    def __init__(self, model: nn.Module, *batch: Tensor) -> None:
        self.model, self.batch, self.probe = model, batch, Probe(model)
        self.ring = Ring(sum(width for _, width in self.probe.layout), 2, torch.device("cpu"))
        self.one = one_pass.OnePass(self.probe, self.ring, LR, batch)

    def rows(self, loss: Tensor) -> tuple[np.ndarray, np.ndarray, float, float]:
        """By operations and in one pass, with the norms that clipping is given."""
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


def everything() -> Both:
    both = Both(Everything(), torch.randn(6, 12), torch.arange(6))
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
def test_one_number_anywhere_shows_in_both_ways(place: tuple[str, Callable[[Any], Tensor]], value: float) -> None:
    both = everything()
    place[1](both.model).view(-1)[1] = value
    both.compare(torch.tensor(1.5))


def test_nan_beats_infinity_wherever_it_comes_first() -> None:
    for first, second in ((NAN, INF), (INF, NAN)):
        both = everything()
        for tensor in (both.model.last_state, both.model.gated.grad, both.model.projection.data):
            flat = tensor.view(-1)
            flat[0], flat[-1] = first, second
        both.compare(torch.tensor(first))


@pytest.mark.parametrize("missing", ["gated", "imaginary", "log_dt", "projection", "all"])
def test_a_missing_gradient_is_zero(missing: str) -> None:
    both = everything()
    for name, p in both.model.named_parameters():
        if missing in (name, "all"):
            p.grad = None
    both.compare(torch.tensor(NAN))


@pytest.mark.parametrize("frozen", ["gated", "imaginary", "log_dt", "offset"])
def test_what_is_frozen_is_recorded_with_a_gradient_of_zero(frozen: str) -> None:
    model = Everything()
    getattr(model, frozen).requires_grad_(False)
    both = Both(model, torch.randn(6, 12), torch.arange(6))
    both.model(both.batch[0]).backward()
    both.compare(torch.tensor(1.0))


@pytest.mark.parametrize("bad", [None, NAN, INF, -INF])
@pytest.mark.parametrize("where", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64])
def test_what_of_the_batch_is_not_finite_has_the_same_code(bad: float | None, where: int, dtype: torch.dtype) -> None:
    x, y = torch.ones(3, 7, dtype=dtype), torch.ones(3, 7)
    both = Both(Everything(), x, y)
    both.model(torch.randn(6, 12)).backward()
    for tensor in (x, y)[slice(where) if where else slice(2)]:
        if bad is not None:
            tensor[1, 2] = bad
    both.compare(torch.tensor(1.0))


def test_gradients_states_and_losses_of_any_layout_and_precision_are_read() -> None:
    both = everything()
    model = both.model
    model.projection.grad = torch.randn(7, 3).T
    model.gated.grad = torch.randn(4, 6)[:, ::2]
    for state in (torch.randn(12, 6).T, torch.randn(2, 12).bfloat16(), torch.randn(2, 12).double(), None):
        model.last_state = state
        both.compare(torch.tensor(1.25, dtype=torch.bfloat16))


def test_a_model_without_records_has_its_norms() -> None:
    both = Both(nn.Linear(5, 3), torch.randn(2, 5), torch.randn(2, 3))
    both.model(both.batch[0]).sum().backward()
    both.compare(torch.tensor(1.0))


@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 1.0, 1e30, 3e38])
@pytest.mark.parametrize("shape", [(3, 400), (300, 400), (70_000, 1)])
def test_norms_neither_overflow_nor_vanish(shape: tuple[int, int], scale: float, threads: int) -> None:
    model = nn.Linear(shape[1], shape[0])
    both = Both(model, torch.randn(2, 5))
    model.weight.grad = (torch.randn(shape) * scale).clamp(-3.4e38, 3.4e38)
    both.compare(torch.tensor(1.0))


def test_a_weight_counts_as_finite_up_to_1e18() -> None:
    model = nn.Linear(400, 300)
    both = Both(model, torch.randn(2, 5))
    model.weight.data.fill_(1e18)
    model.bias.data[1] = 2e19
    _, row, *_ = both.rows(torch.tensor(1.0))
    assert np.isfinite(row[2:4]).tolist() == [True, False]


def test_every_number_of_threads_gives_the_same_bits() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.Linear(400, 600), nn.Linear(600, 3))
    both = Both(model, torch.randn(2, 300))
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


def test_wide_records_are_summed_up_in_the_same_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "WIDE", 9)
    monkeypatch.setattr(names, "EXTREMES", 4)
    both = everything()
    assert [r.wide for r in both.probe.records] == [True, False, True, False, False]
    both.compare(torch.tensor(1.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions_go_the_other_way(dtype: torch.dtype) -> None:
    probe = Probe(nn.Linear(3, 4).to(dtype))
    ring = Ring(sum(width for _, width in probe.layout), 2, torch.device("cpu"))
    assert one_pass.make(probe, ring, LR, ()) is None


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
def test_a_prepared_step_records_and_trains_as_the_step_by_operations(layer: str) -> None:
    (folded, folded_ring), (plain, plain_ring) = a_step(layers=[layer, layer]), a_step(layers=[layer, layer])
    assert prepare(folded, "auto", steps=10).mode == "eager"
    assert folded.one_pass is not None
    assert plain.one_pass is None
    for step, ring in ((folded, folded_ring), (plain, plain_ring)):
        for _ in range(4):
            step.run()
            ring.advance()
    got, wanted = folded_ring.take().wait(), plain_ring.take().wait()
    np.testing.assert_allclose(got, wanted, rtol=3e-5, atol=1e-7)
    np.testing.assert_array_equal(got[:, 0], wanted[:, 0])  # the losses: the norms that clip differ by less than they can show
