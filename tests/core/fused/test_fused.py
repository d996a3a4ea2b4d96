"""The fused layer equals the unfused one in values, gradients, states and telemetry, needs less memory, and is chosen only
where its speed was measured."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import get_args

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.fused import choice
from stablessm_core.fused.operator import fused_layer, layer_outputs
from stablessm_core.layers import StableSSM
from stablessm_core.model import build_model
from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.layers.stable_ssm import ActivationName
from stablessm_core.tasks.loading import get_task
from stablessm_core.training.environment import _layers
from tests.core.scan.cases import peak_memory

pytestmark = [pytest.mark.spread, pytest.mark.slow]

CPU = torch.device("cpu")


def pair(d_model: int = 5, d_state: int = 7, time: str = "discrete", **options: object) -> tuple[StableSSM, StableSSM]:
    """(unfused, fused) versions of the same layer."""
    torch.manual_seed(0)
    map_ = get_reparameterization("best", time=time)
    plain = StableSSM(d_model, d_state, reparameterization=map_, fused="off", **options)
    fused = copy.deepcopy(plain)
    fused.fused = "on"
    return plain, fused


def solve(layer: StableSSM, x: Tensor, weight: Tensor) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = layer(x)
    state = layer.last_state
    assert state is not None
    assert not state.requires_grad
    return [y.detach(), state, *torch.autograd.grad((y * weight).sum(), [x, *layer.parameters()])]


@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_fused_and_unfused_agree_in_float64(activation: str, time: str) -> None:
    for length in (1, 2, 63, 128, 129, 300):
        plain, fused = pair(time=time, activation=activation)
        x, weight = torch.randn(2, 2, length, 5, dtype=torch.float64).unbind(0)
        for got, wanted in zip(solve(fused.double(), x, weight), solve(plain.double(), x, weight), strict=True):
            torch.testing.assert_close(got, wanted, rtol=1e-10, atol=1e-12)


def test_negative_zero_and_boundary_eigenvalues_agree() -> None:
    a = torch.tensor([0.0, 1.0, 1 - 1e-7, -1.0, -0.5], dtype=torch.float64)
    B, C, D = torch.randn(5, 3).double(), torch.randn(3, 5).double(), torch.randn(3).double()
    x = torch.randn(2, 1000, 3, dtype=torch.float64)
    y, last = fused_layer(a, B, C, D, x, activation="tanh", products=torch.float64, backend="torch")
    h, outputs = torch.zeros(2, 5, dtype=torch.float64), []
    for t in range(1000):
        h = a * h + x[:, t] @ B.T
        outputs.append(torch.tanh(h) @ C.T + D * x[:, t])
    torch.testing.assert_close(y, torch.stack(outputs, 1), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(last, h, rtol=1e-9, atol=1e-9)


def test_the_float32_error_is_at_most_twice_the_error_of_the_unfused_layer() -> None:
    plain, fused = pair(64, 64, eigenvalue_range=(0.5, 0.9999))
    x, weight = torch.randn(2, 4, 1000, 64, generator=torch.Generator().manual_seed(1)).unbind(0)
    truth = solve(copy.deepcopy(plain).double(), x.double(), weight.double())
    for one, other, true in zip(solve(fused, x, weight), solve(plain, x, weight), truth, strict=True):
        assert (one - true).norm() <= 2 * (other - true).norm() + 1e-7 * true.norm()


def test_bfloat16_autocast_keeps_float32_states_and_the_accuracy_of_the_unfused_layer() -> None:
    plain, fused = pair(32, 32)
    x, weight = torch.randn(2, 3, 200, 32, generator=torch.Generator().manual_seed(1)).unbind(0)
    truth = solve(plain, x, weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        ours, theirs = solve(fused, x, weight), solve(plain, x, weight)
    assert [t.dtype for t in ours] == [t.dtype for t in theirs]
    for one, other, true in zip(ours, theirs, truth, strict=True):
        assert (one - true).norm() <= 2 * (other - true).norm() + 1e-6 * true.norm()


def test_single_steps_give_the_same_output_as_the_fused_form() -> None:
    _, fused = pair()
    x = torch.randn(3, 150, 5)
    whole, state, outputs = fused(x), fused.initial_state(3), []
    for t in range(150):
        y, state = fused.step(x[:, t], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), whole, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(state, fused.last_state, rtol=1e-4, atol=1e-5)


def arguments(length: int = 130, dtype: torch.dtype = torch.float64) -> tuple[Tensor, ...]:
    random = torch.Generator().manual_seed(0)
    shapes = ((3,), (3, 2), (2, 3), (2,), (2, length, 2))
    given = [torch.randn(shape, dtype=dtype, generator=random) for shape in shapes]
    given[0] = given[0].tanh()
    return tuple(t.requires_grad_() for t in given)


@pytest.mark.parametrize("activation", ["gelu", "identity", "silu", "tanh"])
def test_gradients_match_finite_differences(activation: str) -> None:
    def outputs(*given: Tensor) -> Tensor:
        return fused_layer(*given, activation=activation, products=torch.float64, backend="torch")[0]

    assert torch.autograd.gradcheck(outputs, arguments(), fast_mode=True)


def test_the_operator_passes_pytorchs_opcheck() -> None:
    rest = ("tanh", torch.float32, "torch")
    torch.library.opcheck(layer_outputs, (*arguments(dtype=torch.float32), *rest))


def test_two_runs_give_the_same_bits() -> None:
    _, fused = pair(16, 16)
    x, weight = torch.randn(2, 3, 300, 16).unbind(0)
    assert all(torch.equal(a, b) for a, b in zip(solve(fused, x, weight), solve(fused, x, weight), strict=True))


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # raised by Dynamo
def test_the_fused_layer_compiles_as_one_graph() -> None:
    _, fused = pair()
    x = torch.randn(2, 140, 5)
    wanted = fused(x)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), wanted)


def test_a_non_finite_input_changes_only_its_own_sequence_from_its_own_step_on() -> None:
    _, fused = pair()
    x = torch.randn(3, 300, 5)
    x[1, 140, 2] = float("nan")
    y = fused(x)
    spoiled = ~y.isfinite()
    assert not spoiled[[0, 2]].any()
    assert not spoiled[1, :140].any()
    assert spoiled[1, 140:].all()
    assert fused.last_state is not None
    assert torch.equal(fused.last_state.isfinite().all(1), torch.tensor([True, False, True]))


def test_a_diverging_eigenvalue_makes_only_the_last_state_non_finite() -> None:
    torch.manual_seed(0)
    layer = StableSSM(6, 10, reparameterization=get_reparameterization("direct", time="discrete"), fused="on")
    with torch.no_grad():
        layer.w[3] = 1.5
    layer(torch.randn(1, 1000, 6))
    assert layer.last_state is not None
    assert layer.last_state[0].isfinite().tolist() == [i != 3 for i in range(10)]


def kept_for_backward(layer: StableSSM, x: Tensor) -> int:
    """Bytes that the layer saves for the backward pass, not counting the input and the parameters."""
    ours = {t.untyped_storage().data_ptr() for t in (x, *layer.parameters(), *layer.buffers())}
    kept: dict[int, int] = {}

    def note(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        y = layer(x)
    del y
    return sum(size for pointer, size in kept.items() if pointer not in ours)


def test_the_fused_layer_keeps_no_states_for_the_backward_pass() -> None:
    plain, fused = pair(32, 64)
    x = torch.randn(4, 2048, 32, requires_grad=True)
    states = 4 * 2048 * 64 * 4
    assert kept_for_backward(plain, x) >= 2 * states
    assert kept_for_backward(fused, x) <= states / 32


def test_the_fused_layer_needs_at_most_half_the_peak_memory() -> None:
    plain, fused = pair(64, 64)
    x = torch.randn(4, 4096, 64, requires_grad=True)
    held = [peak_memory(lambda layer=layer: layer(x).sum().backward()) for layer in (fused, plain)]
    assert 2 * held[0] <= held[1]


def test_the_fused_form_runs_only_if_requested_or_faster_in_the_measured_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shape = {"d_model": 64, "d_state": 64, "steps": 1 << 16, "dtype": torch.float32}
    assert choice.choose("auto", CPU, **shape).described() == {"form": "unfused", "reason": "measured slower on cpu"}
    assert choice.choose("off", CPU, **shape).backend is None
    assert choice.choose("on", CPU, **shape).backend == "torch"
    unmeasured = choice.choose("auto", CPU, **shape, name="NVIDIA H300")
    assert unmeasured == choice.Choice(None, "not measured on NVIDIA H300")
    monkeypatch.setitem(choice.TABLE, "cpu", (choice.Row(64, 64, 1 << 16, fused=True),))
    assert choice.choose("auto", CPU, **shape).backend == "torch"
    assert choice.choose("auto", CPU, **shape | {"d_state": 65}).reason == "not measured at this shape on cpu"
    assert choice.choose("auto", CPU, **shape, scan_backend="reference").backend is None
    with pytest.raises(ValueError, match="fused must be one of auto, on, off, got 'maybe'"):
        choice.choose("maybe", CPU, **shape)


def test_a_models_layers_follow_the_runs_fused_setting_and_the_environment_records_it() -> None:
    def environment(wanted: str) -> tuple[Tensor, dict[str, str]]:
        config = RunConfig.model_validate(
            {"task": {"name": "polynomial_memory"}, "model": {"d_model": 8, "d_state": 8}, "train": {"fused": wanted}}
        )
        task = get_task(config.task, Path())
        model = build_model(config, task)
        return model(torch.ones(1, 150, 1)), _layers(config, task, model, CPU)

    y, facts = environment("on")
    assert facts["form"] == "fused, torch"
    plain, unfused = environment("auto")
    assert unfused == {"form": "unfused", "reason": "measured slower on cpu"}
    torch.testing.assert_close(y, plain)


def test_a_layer_that_does_not_choose_the_fused_form_keeps_every_bit() -> None:
    plain, _ = pair(16, 16)
    auto = copy.deepcopy(plain)
    auto.fused = "auto"
    x, weight = torch.randn(2, 3, 200, 16).unbind(0)
    given = solve(auto, x, weight)
    assert all(torch.equal(a, b) for a, b in zip(given, solve(plain, x, weight), strict=True))
    lambda_bar, gain = plain._transition()
    h = linear_scan(lambda_bar, functional.linear(x, gain[:, None] * plain.B))
    assert torch.equal(given[0], functional.linear(torch.tanh(h), plain.C) + plain.D * x)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": torch.zeros(2, 0, 2)}, ValueError, r"x must be \(batch, length, d_model\)"),
        ({"B": torch.zeros(3, 3)}, ValueError, r"B must be \(3, 2\), got \(3, 3\)"),
        ({"C": torch.zeros(2, 3).half()}, TypeError, "C is torch.float16"),
        ({"x": torch.zeros(2, 4, 2, dtype=torch.int64)}, TypeError, "x must be a floating tensor, got torch.int64"),
        ({"activation": "swish"}, ValueError, "activation must be one of .*, got 'swish'"),
        ({"backend": "triton"}, ValueError, "backend 'triton' cannot run here: .*; backend 'torch' works on cpu"),
    ],
)
def test_arguments_that_do_not_fit_together_are_refused(changed: dict[str, object], error: type[Exception], message: str) -> None:
    a, B, C, D, x = (t.detach() for t in arguments(4, torch.float32))
    given = {"a": a, "B": B, "C": C, "D": D, "x": x, "activation": "tanh", "products": torch.float32, "backend": "torch"}
    with pytest.raises(error, match=message):
        fused_layer(**(given | changed))


def test_every_activation_of_the_configuration_is_implemented() -> None:
    assert set(ACTIVATIONS) == set(get_args(ActivationName))
