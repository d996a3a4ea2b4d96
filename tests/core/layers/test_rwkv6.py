"""RWKV-6: the published recurrence in every form, the gate on its decay rates, the same function for every map."""

import math

import numpy as np
import pytest
import torch
from pydantic_core import PydanticCustomError
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.rwkv6 import RWKV6
from stablessm_core.maps import MAPS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.rwkv6 import Rwkv6
from stablessm_core.watch.watchable import watched_records

REACHING = [name for name, map_ in MAPS.items() if "continuous" in map_.forms]


def make(d_model: int = 6, head_size: int = 3, name: str = "exp", **options: int) -> RWKV6:
    torch.manual_seed(0)
    return RWKV6(d_model, head_size, reparameterization=get_reparameterization(name, time="continuous"), **options)


def trained(d_model: int = 6, head_size: int = 3, name: str = "exp", spread: float = 1.0, **options: int) -> RWKV6:
    """A layer in float64 whose projections are no longer 0 and whose gates vary."""
    layer = make(d_model, head_size, name, mix_rank=4, decay_rank=3, **options).double()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            if parameter.dim() > 1:
                scale = spread / parameter.shape[-1] ** 0.5
                parameter.copy_(scale * torch.randn(parameter.shape, generator=random, dtype=torch.float64))
    return layer


def x_of(length: int, d_model: int = 6, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stepped(layer: RWKV6, x: torch.Tensor) -> torch.Tensor:
    state, outputs = layer.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


def published(layer: RWKV6, x: torch.Tensor) -> torch.Tensor:
    """Equations 11 to 20 of arXiv 2404.05892, one sequence, step and head at a time; w + lora share one exponential."""
    d, size = layer.w.shape[0], layer.head_size
    outputs = torch.zeros_like(x)
    down, ups = layer.mix_down.weight.view(5, -1, d), layer.mix_up
    for b, sequence in enumerate(x):
        S, before = torch.zeros(d // size, size, size, dtype=x.dtype), torch.zeros(d, dtype=x.dtype)
        for t, now in enumerate(sequence):
            base = torch.lerp(now, before, layer.mix_x)
            xw, xk, xv, xr, xg = (
                torch.lerp(now, before, layer.mix[j] + torch.tanh(down[j] @ base) @ ups[j]) for j in range(5)
            )  # fmt: skip
            r, k, v = layer.receptance.weight @ xr, layer.key.weight @ xk, layer.value.weight @ xv
            decay = torch.exp(-torch.exp(layer.w + layer.decay_up @ torch.tanh(layer.decay_down.weight @ xw)))
            o = torch.zeros(d, dtype=x.dtype)
            for h in range(d // size):
                at = slice(h * size, (h + 1) * size)
                outer = torch.outer(k[at], v[at])
                o[at] = r[at] @ (S[h] + torch.diag(layer.u[at]) @ outer)
                S[h] = torch.diag(decay[at]) @ S[h] + outer
            normed = torch.group_norm(o[None], d // size, layer.norm.weight, layer.norm.bias, 64e-5)[0]
            outputs[b, t] = layer.output.weight @ (normed * functional.silu(layer.gate.weight @ xg))
            before = now
    return outputs


@torch.no_grad()
@pytest.mark.parametrize(("d_model", "head_size"), [(6, 3), (4, 4), (5, 1)])
def test_the_layer_computes_the_published_recurrence(d_model: int, head_size: int) -> None:
    layer, x = trained(d_model, head_size), x_of(12, d_model)
    torch.testing.assert_close(layer(x), published(layer, x), rtol=1e-10, atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize(
    ("d_model", "head_size", "length"),
    [(1, 1, 7), (6, 3, 1), (6, 3, 2), (6, 2, 63), (7, 7, 64), (6, 3, 65), (9, 3, 300), (2, 2, 4097)],
)
@pytest.mark.slow
def test_single_steps_match_the_chunked_form(d_model: int, head_size: int, length: int) -> None:
    layer, x = trained(d_model, head_size), x_of(length, d_model)
    torch.testing.assert_close(stepped(layer, x), layer(x), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_gradients_are_right() -> None:
    layer = trained(4, 2)
    x = x_of(7, 4, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_gradients_match_the_gradients_of_single_steps() -> None:
    layer, x = trained(), x_of(70)
    weight = torch.sin(torch.arange(x.numel()).double()).view(x.shape)
    parallel = torch.autograd.grad((layer(x) * weight).sum(), list(layer.parameters()))
    one_by_one = torch.autograd.grad((stepped(layer, x) * weight).sum(), list(layer.parameters()))
    for got, wanted in zip(parallel, one_by_one, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-8, atol=1e-9)


def test_extreme_decays_have_finite_outputs_and_gradients() -> None:
    layer = trained().float()
    with torch.no_grad():
        # s ranges from e^-1000, which becomes 0, to e^88: a state never decays or vanishes at once.
        layer.decay_up.mul_(1000)
    y = layer(x_of(100).float())
    y.square().sum().backward()
    assert y.isfinite().all()
    for parameter in layer.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
    one_by_one = stepped(layer, x_of(100).float())
    torch.testing.assert_close(y, one_by_one, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", REACHING)
def test_a_new_layer_computes_the_same_function_with_every_map(name: str) -> None:
    x = x_of(50)
    torch.testing.assert_close(trained(name=name)(x), trained(name="exp")(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("index", "n_layers"), [(0, 1), (0, 4), (2, 4), (3, 4)])
def test_initial_weights_follow_the_published_initialization_at_each_depth(index: int, n_layers: int) -> None:
    d, layer = 64, make(64, 64, index=index, n_layers=n_layers)
    rho = index / (n_layers - 1) if n_layers > 1 else 0
    share = [(i / d) ** (1 - index / n_layers) for i in range(d)]
    assert layer.w.tolist() == pytest.approx([-6 + 5 * (n / (d - 1)) ** (0.7 + 1.3 * rho) for n in range(d)], abs=1e-5)
    bonus = [rho * (1 - n / (d - 1)) + ((n + 1) % 3 - 1) * 0.1 for n in range(d)]
    assert layer.u.tolist() == pytest.approx(bonus, abs=1e-6)
    assert layer.mix_x.tolist() == pytest.approx([1 - s for s in share], abs=1e-6)
    w, k, v, r, g = layer.mix.tolist()
    assert w == k == pytest.approx([1 - s for s in share], abs=1e-6)
    assert v == pytest.approx([1 - s - 0.3 * rho for s in share], abs=1e-6)
    assert r == g == pytest.approx([1 - s**0.5 for s in share], abs=1e-6)
    for linear, gain in ((layer.receptance, 1), (layer.value, 1), (layer.key, 0.1), (layer.gate, 0.1)):
        torch.testing.assert_close(linear.weight @ linear.weight.T, gain**2 * torch.eye(d), rtol=0, atol=1e-5)
    assert not any(linear.weight.any() for linear in (layer.output, layer.mix_down, layer.decay_down))
    assert 0.009 < layer.mix_up.abs().max().item() <= 0.01
    assert 0.009 < layer.decay_up.abs().max().item() <= 0.01
    assert layer.norm.weight.tolist() == pytest.approx([((1 + index) / n_layers) ** 0.7] * d)
    low, high = Rwkv6().initial_range(d)
    assert (math.exp(low), math.exp(high)) == pytest.approx((0.69220, 0.99752), abs=1e-5)
    rates = layer.reparameterization(layer.w)
    assert (rates.min().item(), rates.max().item()) == pytest.approx((low, high))


@pytest.mark.parametrize(("options", "d_model"), [({}, 64), ({"head_size": 4, "mix_rank": 3, "decay_rank": 5}, 12), ({}, 96)])
def test_the_layer_is_built_from_its_configuration_section(options: dict[str, int], d_model: int) -> None:
    section = Rwkv6(**options)
    section.check(d_model)
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(section, Surroundings(d_model, get_reparameterization("best", time="continuous"), 1, 2)))
    assert section.parameters(d_model) == sum(p.numel() for p in layers[0].parameters())
    # As in the published code: five matrices, five low-rank pairs of rank 32, one of rank 64, and ten vectors.
    if not options:
        assert section.parameters(d_model) == 5 * d_model**2 + 458 * d_model
    assert layers[0].head_size == {64: 64, 12: 4, 96: 48}[d_model]
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("head_size", "d_model"), [(5, 12), (None, 67), (24, 12)])
def test_the_error_for_a_head_size_that_does_not_divide_the_width_names_its_field(head_size: int | None, d_model: int) -> None:
    with pytest.raises(PydanticCustomError) as refused:
        Rwkv6(head_size=head_size).check(d_model)
    allowed = f"divisors of d_model = {d_model} from 2"
    assert refused.value.context == {"field": "head_size", "given": str(head_size), "allowed": allowed}


def test_the_record_watches_one_eigenvalue_and_its_gate_per_channel() -> None:
    layer, x = trained(), x_of(20)
    first, lora = watched_records(layer)
    assert (first.width, first.path, first.form.gate, first.form.time) == (6, "w", True, "continuous")
    assert (lora.id, lora.width, lora.path) == ("0.decay_up", 6, "decay_up")
    layer(x)
    smallest, mean, largest = layer.gates()["decay"]
    with torch.no_grad():
        s, state = [], layer.initial_state(2)
        decays = torch.ones(2, 6, dtype=torch.float64)
        for x_t in x.unbind(1):
            projected = layer._projections(x_t[:, None], state[0][:, None])
            s.append(projected[3].flatten(1))
            decays *= torch.exp(-layer.w.exp() * s[-1])
            _, state = layer.step(x_t, state)
    every = torch.stack(s, 1)
    torch.testing.assert_close(smallest, every.amin((0, 1)))
    torch.testing.assert_close(mean, every.mean((0, 1)))
    torch.testing.assert_close(largest, every.amax((0, 1)))
    recorded = {"weight": layer.w.detach().numpy(), "gate_mean": mean.numpy(), "gate_min": smallest.numpy()}
    effective = decays.log().sum(0).div(2 * 20).exp().numpy()  # geometric mean over batch and time
    np.testing.assert_allclose(first.form.derive("eigenvalue", recorded), effective, rtol=1e-6)
    assert layer.last_state is not None
    torch.testing.assert_close(layer.last_state, state[1].abs().amax(-1).flatten(1), rtol=1e-10, atol=1e-12)


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer = trained(16, 8, spread=0.5).float()
    x = x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert layer.last_state.dtype == layer.gates()["decay"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.1)
