"""RWKV-4: the published average and its public test vector, the same function for every map, no overflow of e^k."""

import math

import pytest
import torch

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.rwkv4 import RWKV4, _weighted_average
from stablessm_core.maps import MAPS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.rwkv4 import Rwkv4
from stablessm_core.watch.watchable import watched_records

REACHING = [name for name, map_ in MAPS.items() if "discrete" in map_.forms]


def wave(*shape: int, k: float) -> torch.Tensor:
    return torch.sin(k * torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)).view(shape)


def make(d_model: int = 5, name: str = "exp", **options: int) -> RWKV4:
    torch.manual_seed(0)
    return RWKV4(d_model, reparameterization=get_reparameterization(name), **options)


def trained(d_model: int = 5, name: str = "exp") -> RWKV4:
    """A layer in float64 whose projections are no longer 0."""
    layer = make(d_model, name).double()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() == 2:
                parameter.copy_(torch.randn(parameter.shape, generator=random) / d_model**0.5)
    return layer


def x_of(length: int, d_model: int = 5, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stepped(layer: RWKV4, x: torch.Tensor) -> torch.Tensor:
    state, outputs = layer.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


def average_of_the_paper(lambda_bar: torch.Tensor, u: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Equation 16 of arXiv 2305.13048, with every sum computed directly."""
    outputs = []
    for t in range(k.shape[1]):
        ages = torch.arange(t - 1, -1, -1, dtype=k.dtype)[:, None]
        weights = torch.cat([lambda_bar**ages * k[:, :t].exp(), (u + k[:, t : t + 1]).exp()], 1)
        outputs.append((weights * v[:, : t + 1]).sum(1) / weights.sum(1))
    return torch.stack(outputs, 1)


def test_the_weighted_average_matches_the_public_implementation() -> None:
    w, u = torch.tensor([-5.0, -1.0, 1.0]).double(), torch.tensor([0.3, 0.0, -0.3]).double()
    y, _ = _weighted_average(torch.exp(-w.exp()), u, 2 * wave(1, 5, 3, k=0.9), wave(1, 5, 3, k=0.5), "auto")
    assert y[0, 4].tolist() == pytest.approx([0.015792, -0.019898, 0.693432], abs=1e-6)


@pytest.mark.parametrize("backend", ["torch", "reference"])
def test_the_weighted_average_matches_the_sums_in_the_paper(backend: str) -> None:
    lambda_bar, u = torch.tensor([0.999, 0.5, 1e-9, 0.0]).double(), torch.tensor([0.3, 0.0, -0.3, 1.0]).double()
    k, v = 3 * wave(2, 40, 4, k=0.9), wave(2, 40, 4, k=0.5)
    y, _ = _weighted_average(lambda_bar, u, k, v, backend)
    torch.testing.assert_close(y, average_of_the_paper(lambda_bar, u, k, v), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("d_model", "length"), [(1, 7), (5, 1), (5, 2), (7, 63), (3, 4097)])
@pytest.mark.slow
def test_single_steps_match_the_scans(d_model: int, length: int) -> None:
    layer, x = trained(d_model), x_of(length, d_model)
    with torch.no_grad():
        torch.testing.assert_close(stepped(layer, x), layer(x), rtol=1e-10, atol=1e-10)


def test_keys_whose_exponentials_overflow_still_give_the_exact_average() -> None:
    lambda_bar, u = torch.tensor([0.99, 0.5, 1e-30]), torch.zeros(3)
    k, v = 40 * wave(1, 60, 3, k=0.9).float(), wave(1, 60, 3, k=0.5).float()
    y, held = _weighted_average(lambda_bar, u, k, v, "auto")
    expected = average_of_the_paper(lambda_bar.double(), u.double(), k.double(), v.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-5)
    shifted, held_shifted = _weighted_average(lambda_bar, u, k + 1024, v, "auto")  # e^1024 is infinite even in float64
    torch.testing.assert_close(shifted, y, rtol=1e-3, atol=1e-4)
    assert held.isfinite().all()
    assert held_shifted.isfinite().all()


def test_an_eigenvalue_that_underflows_has_finite_gradients() -> None:
    layer = make()
    with torch.no_grad():
        layer.w.fill_(6.0)  # e^-e^6 is 0 in float32
        layer.output.weight.fill_(0.3)
    layer(x_of(20).float()).square().sum().backward()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1, 30, 100, 1000])
def test_outputs_and_gradients_in_float32_match_float64_where_eigenvalues_underflow_and_keys_are_large(scale: int) -> None:
    layer, x, found = trained(8).float(), x_of(64, 8, 4).float(), []
    with torch.no_grad():
        layer.w.copy_(torch.tensor([3.0, 3.9, 4.4, 4.64, 5.0, 5.44, 6.0, 9.0]))  # e^-e^w is 0 in float32 from 4.65 on
        layer.key.weight.mul_(scale)  # so that a key can be hundreds smaller than the key before it
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype).zero_grad()
        y = layer(x.to(dtype))
        y.square().mean().backward()
        found.append([t.detach().double() for t in (y, *(p.grad for p in layer.parameters()))])
    for got, wanted in zip(*found, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max()))


@pytest.mark.parametrize("rate", [900.0, 2000.0, 1e6, 1e20])
def test_a_key_far_below_the_key_before_it_gives_the_exact_average_where_decay_is_fast(rate: float) -> None:
    k, v = torch.tensor([700.0, -900.0, -500.0, -400.0]).view(1, 4, 1), wave(1, 4, 1, k=0.5).float()
    y, held = _weighted_average(torch.zeros(1), torch.zeros(1), k, v, "auto", torch.full((1,), rate))
    third = v[0, 0, 0] if 700 - rate > -500 else v[0, 2, 0]  # e^(700 - rate) v_0 beside e^-500 v_2
    assert y[0, :3, 0].tolist() == [v[0, 0, 0], v[0, 0, 0], third]
    assert y.isfinite().all()
    assert held.isfinite().all()


@pytest.mark.parametrize("lambda_bar", [0.0, 1e-42, 1e-30])
def test_a_map_that_reaches_zero_gives_a_finite_average_where_keys_fall_by_hundreds(lambda_bar: float) -> None:
    k, v = torch.tensor([100.0, -100.0, -160.0]).view(1, 3, 1), wave(1, 3, 1, k=0.5).float()
    y, _ = _weighted_average(torch.full((1,), lambda_bar), torch.zeros(1), k, v, "auto")
    wide = [torch.tensor(value).double() for value in ([float(torch.tensor(lambda_bar))], [0.0])]
    expected = average_of_the_paper(*wide, k.double(), v.double())
    torch.testing.assert_close(y.double(), expected, rtol=1e-4, atol=1e-6)


def test_gradients_are_right() -> None:
    layer = trained(3)
    x = x_of(7, 3, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_gradients_match_the_gradients_of_single_steps() -> None:
    layer, x = trained(), x_of(33)
    weight = wave(2, 33, 5, k=0.3)
    parallel = torch.autograd.grad((layer(x) * weight).sum(), list(layer.parameters()))
    one_by_one = torch.autograd.grad((stepped(layer, x) * weight).sum(), list(layer.parameters()))
    for got, wanted in zip(parallel, one_by_one, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", REACHING)
def test_a_new_layer_computes_the_same_function_with_every_map(name: str) -> None:
    x = x_of(50, 6)
    torch.testing.assert_close(trained(6, name)(x), trained(6, "exp")(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("index", "n_layers"), [(0, 1), (0, 4), (2, 4), (3, 4)])
def test_initial_weights_follow_the_published_initialization_at_each_depth(index: int, n_layers: int) -> None:
    d, layer = 64, make(64, index=index, n_layers=n_layers)
    rho = index / (n_layers - 1) if n_layers > 1 else 0
    share = [(i / d) ** (1 - index / n_layers) for i in range(d)]
    w = [-5 + 8 * (n / (d - 1)) ** (0.7 + 1.3 * rho) for n in range(d)]
    assert layer.w.tolist() == pytest.approx(w, abs=1e-5)
    assert layer.u[:3].tolist() == pytest.approx([math.log(0.3), math.log(0.3) + 0.5, math.log(0.3) - 0.5])
    assert layer.mix_k.tolist() == pytest.approx(share)
    assert layer.mix_v.tolist() == pytest.approx([s + 0.3 * rho for s in share])
    assert layer.mix_r.tolist() == pytest.approx([s**0.5 for s in share])
    torch.testing.assert_close(layer.value.weight @ layer.value.weight.T, torch.eye(d), rtol=0, atol=1e-5)
    assert not any(linear.weight.any() for linear in (layer.key, layer.receptance, layer.output))
    low, high = Rwkv4().initial_range(d)
    assert (low, high) == pytest.approx((1.9e-9, 0.99328), rel=0.01)
    assert layer.reparameterization(layer.w).max().item() == pytest.approx(high)


def test_the_section_builds_a_layer_with_the_public_number_of_parameters() -> None:
    section = Rwkv4()
    given = Surroundings(8, get_reparameterization("best"), index=1, n_layers=2)
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(section, given))
    assert section.parameters(8) == sum(p.numel() for p in layers[0].parameters()) == 296
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_the_record_watches_one_eigenvalue_per_channel() -> None:
    layer = trained()
    (record,) = watched_records(layer)
    assert record.form.data == {"map": "exp", "time": "discrete", "rule": "none", "scale": 1.0, "a": 1.0, "b": 0.5, "dt": None}
    assert (record.width, record.path) == (Rwkv4().eigenvalues(5), "w")
    assert layer.gates() == {}
    x = x_of(9)
    layer(x)
    assert layer.last_state is not None
    state = layer.initial_state(2)
    for x_t in x.unbind(1):
        _, state = layer.step(x_t, state)
    torch.testing.assert_close(layer.last_state, torch.maximum(state[1].abs(), state[2].abs()), rtol=1e-10, atol=1e-12)


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer = trained(16).float()
    x = x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert layer.last_state.dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.1)
