"""The StableSSM layer: its documented recurrence, the same initial eigenvalues for every map, float32 where needed."""

import math

import pytest
import torch

from stablessm_core.layers import StableSSM
from stablessm_core.layers import stable_ssm as layers
from stablessm_core.maps import MAPS
from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.watch.watchable import Watchable

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]
TOLERANCE = {torch.float32: {"rtol": 2e-4, "atol": 2e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-12}}


def make_layer(name: str = "best", time: str = "discrete", d_model: int = 6, d_state: int = 10, **options: object) -> StableSSM:
    torch.manual_seed(0)
    return StableSSM(d_model, d_state, reparameterization=get_reparameterization(name, time=time), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 100, 333])
@pytest.mark.parametrize(("name", "time"), PAIRS)
@pytest.mark.slow
def test_single_steps_give_the_same_output_as_the_parallel_form(name: str, time: str, length: int, dtype: torch.dtype) -> None:
    layer = make_layer(name, time).to(dtype)
    x = torch.randn(3, length, 6, dtype=dtype)
    parallel = layer(x)
    state, outputs = layer.initial_state(3), []
    for t in range(length):
        y, state = layer.step(x[:, t], state)
        outputs.append(y)
    torch.testing.assert_close(torch.stack(outputs, 1), parallel, **TOLERANCE[dtype])
    torch.testing.assert_close(state, layer.last_state, **TOLERANCE[dtype])


@pytest.mark.parametrize("time", ["continuous", "discrete"])
@pytest.mark.parametrize("activation", sorted(ACTIVATIONS))
def test_the_layer_computes_the_papers_recurrence(time: str, activation: str) -> None:
    layer = make_layer("exp", time, activation=activation).double()
    x = torch.randn(2, 20, 6, dtype=torch.float64)
    lambda_ = layer.reparameterization(layer.w)
    if time == "discrete":
        assert layer.gamma is not None
        lambda_bar, B_bar = lambda_, layer.gamma[:, None] * layer.B
    else:
        assert layer.log_dt is not None
        lambda_bar = torch.exp(layer.log_dt.exp() * lambda_)
        B_bar = ((lambda_bar - 1) / lambda_)[:, None] * layer.B
    h, outputs = torch.zeros(2, 10, dtype=torch.float64), []
    for t in range(20):
        h = lambda_bar * h + x[:, t] @ B_bar.T
        outputs.append(ACTIVATIONS[activation].act(h) @ layer.C.T + layer.D * x[:, t])
    torch.testing.assert_close(layer(x), torch.stack(outputs, 1), rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(layer.eigenvalues(), lambda_bar.detach())


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_a_new_layer_computes_the_same_function_with_every_map(time: str) -> None:
    x = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(1))
    outputs = [make_layer(name, time)(x) for name, map_ in MAPS.items() if time in map_.forms]
    assert len(outputs) >= 8
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
@pytest.mark.slow
def test_states_of_a_new_layer_have_the_scale_of_the_input_for_any_length_of_memory(time: str) -> None:
    layer = make_layer("exp", time, d_model=64, d_state=256)
    with torch.no_grad():
        layer(torch.randn(8, 20_000, 64))
    assert layer.last_state is not None
    rms = layer.last_state.square().mean(0).sqrt()
    for quarter in rms.chunk(4):
        assert quarter.square().mean().sqrt().item() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_gradients_of_all_parameters_match_a_loop_over_time(name: str, time: str) -> None:
    layer = make_layer(name, time).double()
    x, weight = torch.randn(2, 33, 6, dtype=torch.float64), torch.randn(2, 33, 6, dtype=torch.float64)
    parallel = torch.autograd.grad((layer(x) * weight).sum(), list(layer.parameters()))
    state, total = layer.initial_state(2), torch.zeros((), dtype=torch.float64)
    for t in range(33):
        y, state = layer.step(x[:, t], state)
        total = total + (y * weight[:, t]).sum()
    stepped = torch.autograd.grad(total, list(layer.parameters()))
    for got, wanted in zip(parallel, stepped, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_eigenvalue_weights_and_states_stay_float32_under_bfloat16_autocast(time: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.dtype] = []
    scan = layers.linear_scan

    def spy(a: torch.Tensor, b: torch.Tensor, **options: object) -> torch.Tensor:
        h = scan(a, b, **options)
        seen.extend([a.dtype, b.dtype, h.dtype])
        return h

    monkeypatch.setattr(layers, "linear_scan", spy)
    layer = make_layer("best", time)
    x = torch.randn(2, 64, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        _, state = layer.step(x[:, 0], layer.initial_state(2))
    y.float().square().mean().backward()
    assert seen == [torch.float32] * 3
    assert layer.w.dtype == layer.w.grad.dtype == state.dtype == layer.last_state.dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.05, atol=0.05)


def test_sixteen_bit_eigenvalue_weights_are_refused() -> None:
    layer = make_layer()
    layer.w.data = layer.w.data.bfloat16()
    with pytest.raises(TypeError, match="float32 or float64"):
        layer(torch.randn(1, 4, 6, dtype=torch.bfloat16))


def test_the_torch_and_reference_backends_give_the_same_output() -> None:
    x = torch.randn(2, 65, 6)
    torch.testing.assert_close(make_layer(scan_backend="torch")(x), make_layer(scan_backend="reference")(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("time", "step"), [("discrete", False), ("continuous", True)])
def test_the_layer_declares_its_watched_record(time: str, step: bool) -> None:
    layer = make_layer("best", time)
    assert isinstance(layer, Watchable)
    (record,) = layer.records()
    assert record.weight is layer.w
    assert (record.log_dt is not None) is step
    assert layer.gates() == {}
    assert layer.last_state is None
    layer(torch.randn(4, 9, 6))
    assert layer.last_state is not None
    assert layer.last_state.shape == (4, 10)
    assert not layer.last_state.requires_grad
    assert set(dict(layer.named_parameters())) == {"w", "B", "C", "D"} | ({"log_dt"} if step else set())


def test_only_the_state_of_an_unstable_eigenvalue_diverges() -> None:
    layer = make_layer("direct")
    with torch.no_grad():
        layer.w[3] = 1.5
    layer(torch.randn(1, 1000, 6))
    assert layer.last_state is not None
    finite = layer.last_state[0].isfinite()
    assert finite.tolist() == [i != 3 for i in range(10)]


def test_initial_step_sizes_cover_their_range() -> None:
    layer = make_layer("exp", "continuous", d_state=512, dt_range=(1e-2, 1.0))
    assert layer.log_dt is not None
    dt = layer.log_dt.exp()
    assert dt.min() >= 1e-2 * 0.999
    assert dt.max() <= 1.001
    assert dt.log().mean().item() == pytest.approx(math.log(0.1), abs=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"d_state": 0}, "d_state is 0"),
        ({"activation": "swish"}, "allowed:"),
        ({"eigenvalue_range": (0.5, 1.5)}, "low <= high"),
        ({"dt_range": (0.0, 1.0)}, "dt_range"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_layer(**options)


def test_a_layer_accepts_the_name_of_a_map_and_uses_best_by_default() -> None:
    assert StableSSM(4, 3).reparameterization == get_reparameterization("best")
    assert StableSSM(4, 3, reparameterization="exp").reparameterization == get_reparameterization("exp")
    with pytest.raises(ValueError, match=r"'nonesuch' in 'discrete' time; possible are direct \(continuous\)"):
        StableSSM(4, 3, reparameterization="nonesuch")


@pytest.mark.parametrize("fused", ["off", "on"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str)
@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_a_sequence_in_pieces_gives_the_same_output_as_the_whole_sequence(
    time: str, dtype: torch.dtype, tolerance: float, fused: str
) -> None:
    layer = make_layer("best", time, fused=fused).to(dtype)
    x = torch.randn(3, 200, 6, dtype=dtype)
    whole, end = layer(x), layer.last_state
    state, pieces = None, []
    for piece in x.split([1, 7, 150, 42], dim=1):
        y, state = layer(piece, state, return_state=True)
        pieces.append(y)
    torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(state, end, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(
        layer(x[:, 8:], layer(x[:, :8], return_state=True)[1]), whole[:, 8:], rtol=tolerance, atol=tolerance
    )


def test_gradients_pass_through_the_state_unless_it_is_detached() -> None:
    layer = make_layer().double()
    x = torch.randn(2, 60, 6, dtype=torch.float64)
    whole = torch.autograd.grad(layer(x).square().sum(), layer.w)[0]

    def in_two(*, detached: bool) -> torch.Tensor:
        first, state = layer(x[:, :30], return_state=True)
        second = layer(x[:, 30:], state.detach() if detached else state)
        return torch.autograd.grad(first.square().sum() + second.square().sum(), layer.w)[0]

    torch.testing.assert_close(in_two(detached=False), whole, rtol=1e-11, atol=1e-12)
    assert (in_two(detached=True) - whole).norm() > 1e-3 * whole.norm()


def test_a_state_returned_under_autocast_is_float32_and_can_be_passed_in_again() -> None:
    layer, x = make_layer(), torch.randn(2, 20, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        _, state = layer(x, return_state=True)
        y, state = layer(x.bfloat16(), state, return_state=True)
    assert state.dtype == torch.float32
    assert y.shape == x.shape


X, STATE = torch.zeros(2, 4, 6), torch.zeros(2, 10)


@pytest.mark.parametrize(
    ("x", "state", "error", "message"),
    [
        (X[0], None, ValueError, r"x must be \(batch, length, d_model = 6\), length at least 1, got \(4, 6\)"),
        (X[:, :, :5], None, ValueError, r"x must be \(batch, length, d_model = 6\), length at least 1, got \(2, 4, 5\)"),
        (X[:, :0], None, ValueError, r"length at least 1, got \(2, 0, 6\)"),
        (X.double(), None, TypeError, r"x is torch.float64, the layer torch.float32; convert one"),
        (X.long(), None, TypeError, r"x is torch.int64"),
        (X.to("meta"), None, ValueError, r"x is on meta, the layer on cpu"),
        (X, STATE[0], ValueError, r"state must be \(batch = 2, d_state = 10\), got \(10,\)"),
        (X, STATE[:1], ValueError, r"state must be \(batch = 2, d_state = 10\), got \(1, 10\)"),
        (X, STATE.double(), TypeError, r"state is torch.float64, the layer torch.float32"),
        (X, STATE.to("meta"), ValueError, r"state is on meta"),
        ([[1.0]], None, TypeError, r"x must be a tensor, got list"),
    ],
)
def test_inputs_and_states_that_do_not_fit_the_layer_are_refused(
    x: torch.Tensor, state: torch.Tensor | None, error: type[Exception], message: str
) -> None:
    layer = make_layer()
    with pytest.raises(error, match=message):
        layer(x, state)
    if state is not None:
        with pytest.raises(error, match=message):
            layer.step(x[:, 0], state)
