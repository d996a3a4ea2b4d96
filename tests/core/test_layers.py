"""The StableSSM layer: the recurrence it promises, the same start for every map, float32 where it matters."""

import math

import pytest
import torch

from stablessm_core import layers
from stablessm_core.activations import ACTIVATIONS
from stablessm_core.layers import StableSSM
from stablessm_core.maps import MAPS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.telemetry.watch import Watchable

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]
TOLERANCE = {torch.float32: {"rtol": 2e-4, "atol": 2e-5}, torch.float64: {"rtol": 1e-10, "atol": 1e-12}}


def make_layer(name: str = "best", time: str = "discrete", d_model: int = 6, d_state: int = 10, **options: object) -> StableSSM:
    torch.manual_seed(0)
    return StableSSM(d_model, d_state, reparameterization=get_reparameterization(name, time=time), **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("length", [1, 2, 7, 100, 333])
@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_step_gives_what_the_parallel_form_gives(name: str, time: str, length: int, dtype: torch.dtype) -> None:
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
def test_the_layer_is_the_papers_recurrence(time: str, activation: str) -> None:
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
def test_every_map_starts_as_the_same_function(time: str) -> None:
    x = torch.randn(2, 50, 6, generator=torch.Generator().manual_seed(1))
    outputs = [make_layer(name, time)(x) for name, map_ in MAPS.items() if time in map_.forms]
    assert len(outputs) >= 8
    for output in outputs[1:]:
        torch.testing.assert_close(output, outputs[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("time", ["continuous", "discrete"])
def test_states_start_at_the_scale_of_the_input_whatever_their_memory(time: str) -> None:
    layer = make_layer("exp", time, d_model=64, d_state=256)
    with torch.no_grad():
        layer(torch.randn(8, 20_000, 64))
    assert layer.last_state is not None
    rms = layer.last_state.square().mean(0).sqrt()
    for quarter in rms.chunk(4):
        assert quarter.square().mean().sqrt().item() == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_gradients_of_all_parameters_are_those_of_the_loop(name: str, time: str) -> None:
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
    layer = make_layer().to(torch.bfloat16)
    with pytest.raises(TypeError, match="float32 or float64"):
        layer(torch.randn(1, 4, 6, dtype=torch.bfloat16))


def test_backends_agree() -> None:
    x = torch.randn(2, 65, 6)
    torch.testing.assert_close(make_layer(scan_backend="torch")(x), make_layer(scan_backend="reference")(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("time", "step"), [("discrete", False), ("continuous", True)])
def test_the_layer_announces_what_is_watched(time: str, step: bool) -> None:
    layer = make_layer("best", time)
    assert isinstance(layer, Watchable)
    watched = layer.watched()
    assert watched.weight is layer.w
    assert (watched.log_dt is not None) is step
    assert layer.last_state is None
    layer(torch.randn(4, 9, 6))
    assert layer.last_state is not None
    assert layer.last_state.shape == (4, 10)
    assert not layer.last_state.requires_grad
    assert set(dict(layer.named_parameters())) == {"w", "B", "C", "D"} | ({"log_dt"} if step else set())


def test_an_unstable_eigenvalue_diverges_to_what_it_is() -> None:
    layer = make_layer("direct")
    with torch.no_grad():
        layer.w[3] = 1.5
    layer(torch.randn(1, 1000, 6))
    assert layer.last_state is not None
    finite = layer.last_state[0].isfinite()
    assert finite.tolist() == [i != 3 for i in range(10)]


def test_initial_steps_fill_their_range() -> None:
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
        ({"activation": "swish"}, "allowed are"),
        ({"eigenvalue_range": (0.5, 1.5)}, "low <= high"),
        ({"dt_range": (0.0, 1.0)}, "dt_range"),
    ],
)
def test_bad_arguments_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_layer(**options)
