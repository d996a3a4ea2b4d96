"""RG-LRU in Hawk's block: the public recurrence and initial weights, one result in every form, a clipped square root, correct
gates."""

import math

import numpy as np
import pytest
import torch
from pydantic_core import PydanticCustomError
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.rg_lru import HawkBlock, _gain, _states
from stablessm_core.maps import MAPS, formulas
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.rg_lru import RgLru
from stablessm_core.watch.watchable import watched_records

CONTINUOUS = [name for name, map_ in MAPS.items() if "continuous" in map_.forms]
REACHING = [
    name
    for name in CONTINUOUS
    if all(formulas(name, "continuous", np).reachable.contains(x) for x in RgLru().initial_range(64))
]  # fmt: skip


def wave(*shape: int, k: float) -> torch.Tensor:
    return torch.sin(k * torch.arange(1, math.prod(shape) + 1, dtype=torch.float64)).view(shape)


def make(d_model: int = 6, heads: int = 2, **options: object) -> HawkBlock:
    torch.manual_seed(0)
    return HawkBlock(d_model, heads=heads, **options)


def x_of(length: int, d_model: int = 6, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stepped(layer: HawkBlock, x: torch.Tensor) -> torch.Tensor:
    state, outputs = layer.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


def test_the_recurrence_matches_the_public_implementation() -> None:
    layer, x = make(8).double(), wave(2, 5, 8, k=1.0)
    with torch.no_grad():
        for parameter, shape in ((layer.w, (8,)), (layer.gate_weight, (2, 4, 4)), (layer.gate_bias, (8,))):
            parameter.copy_(wave(*shape, k=0.3))
        r, i = layer._gates_of(x)
        h = _states(r, i * x, layer.reparameterization(layer.w), "auto")
    assert h[0, 4, :3].tolist() == pytest.approx([0.834075, 0.487321, -0.408914], abs=1e-6)


@pytest.mark.parametrize("backend", ["torch", "reference"])
@pytest.mark.parametrize(("d_model", "heads", "length"), [(1, 1, 7), (5, 1, 1), (5, 5, 2), (6, 2, 63), (3, 3, 4097)])
@pytest.mark.slow
def test_single_steps_match_the_scan(d_model: int, heads: int, length: int, backend: str) -> None:
    layer, x = make(d_model, heads, scan_backend=backend).double(), x_of(length, d_model)
    with torch.no_grad():
        torch.testing.assert_close(stepped(layer, x), layer(x), rtol=1e-10, atol=1e-10)


def test_the_block_can_have_a_different_width_than_the_model() -> None:
    section = RgLru(width=10, heads=5)
    layer = build_layer(section, Surroundings(4, get_reparameterization("softplus", time="continuous")))
    assert section.parameters(4) == sum(p.numel() for p in layer.parameters())
    assert layer(x_of(3, 4).float()).shape == (2, 3, 4)
    assert layer.last_state.shape == (2, section.eigenvalues(4))


def test_gradients_are_right() -> None:
    layer, x = make(4).double(), x_of(7, 4, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_only_the_derivative_of_the_square_root_is_clipped() -> None:
    log_a = torch.tensor([-1.0, -1e-3, -1e-9, 0.0, 1e-3], dtype=torch.float64, requires_grad=True)
    gain = _gain(log_a)
    assert gain.tolist() == pytest.approx([*(math.sqrt(-math.expm1(2 * x)) for x in (-1.0, -1e-3, -1e-9)), 0.0, 0.0], rel=1e-12)
    (slope,) = torch.autograd.grad(gain.sum(), log_a)
    exact = [-math.exp(2 * x) / math.sqrt(-math.expm1(2 * x)) for x in (-1.0, -1e-3)]
    assert slope.tolist() == pytest.approx([*exact, -2000.0, -2000.0, 0.0], rel=1e-6)
    near_one = _gain(torch.tensor([-1e-9]))  # 1 - a^2 is 0 in float32
    assert near_one.item() == pytest.approx(math.sqrt(2e-9), rel=1e-6)


@pytest.mark.parametrize("name", REACHING)
def test_a_new_layer_computes_the_same_function_with_every_map(name: str) -> None:
    x, native = x_of(50).float(), make()
    layer = make(reparameterization=get_reparameterization(name, time="continuous"))
    torch.testing.assert_close(layer(x), native(x), rtol=1e-4, atol=1e-6)
    assert native.reparameterization.name == "softplus"


def test_initial_weights_follow_the_published_initialization() -> None:
    layer = make(512, 8, n_layers=4)
    radius = torch.exp(-functional.softplus(layer.w))
    assert 0.9 <= radius.min().item() < 0.902
    assert 0.998 < radius.max().item() <= 0.99901
    # The eigenvalues are uniform over the area of the ring.
    assert radius.square().mean().item() == pytest.approx((0.9**2 + 0.999**2) / 2, abs=0.005)
    assert (math.log(math.expm1(-math.log(0.9))), math.log(math.expm1(-math.log(0.999)))) == pytest.approx((-2.197225, -6.906755))
    deviations = (layer.in_x, 512**-0.5), (layer.in_y, 512**-0.5), (layer.out_proj, (2 / 4 / 512) ** 0.5), (layer.conv, 0.05)
    for part, deviation in deviations:
        assert part.weight.std().item() == pytest.approx(deviation, rel=0.05)
        assert not part.bias.any()
    assert layer.gate_weight.std().item() == pytest.approx(1 / 8, rel=0.05)
    assert not layer.gate_bias.any()


def test_the_section_builds_a_layer_with_the_public_number_of_parameters() -> None:
    section = RgLru(heads=2)
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(section, Surroundings(8, get_reparameterization("best", time="continuous"))))
    assert section.parameters(8) == sum(p.numel() for p in layers[0].parameters()) == 344
    gates = layers[0].gate_weight.numel() + layers[0].gate_bias.numel()
    assert layers[0].w.numel() + gates == 88
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_heads_that_do_not_divide_the_width_are_refused_with_the_allowed_divisors() -> None:
    with pytest.raises(PydanticCustomError, match="is 8; allowed: a divisor of the 12 channels: 1, 2, 3, 4, 6, 12"):
        RgLru().check(12)
    RgLru(width=16).check(12)
    with pytest.raises(ValueError, match="heads is 4"):
        HawkBlock(6, heads=4)


def test_the_record_watches_the_channels_and_their_gate() -> None:
    layer, x = make().double(), x_of(9)
    (record,) = watched_records(layer)
    form = record.form.data
    assert [form[key] for key in ("map", "time", "rule", "scale", "dt", "gate")] == [
        "softplus",
        "continuous",
        "zoh",
        8.0,
        None,
        True,
    ]
    assert (record.width, record.path, record.record.gate, record.record.gates) == (6, "w", "r", 6)
    layer(x)
    r, _ = layer._gates_of(layer.conv(layer.in_x(x)))
    lowest, mean, highest = layer.gates()["r"]
    torch.testing.assert_close(lowest, r.detach().amin((0, 1)))
    torch.testing.assert_close(highest, r.detach().amax((0, 1)))
    a = torch.exp(-8 * r * functional.softplus(layer.w)).detach()
    effective = record.form.derive("eigenvalue", {"weight": layer.w.detach().numpy(), "gate_mean": mean.numpy()})
    np.testing.assert_allclose(effective, a.log().mean((0, 1)).exp().numpy(), rtol=1e-10)
    assert layer.last_state is not None
    state = layer.initial_state(2)
    for x_t in x.unbind(1):
        _, state = layer.step(x_t, state)
    torch.testing.assert_close(layer.last_state, state[1].detach(), rtol=1e-10, atol=1e-12)


def test_eigenvalues_at_given_gate_values_match_the_published_memory() -> None:
    for radius, wanted in ((0.9, (0.4305, 0.6561, 0.9916)), (0.999, (0.99203, 0.99601, 0.99992))):
        found = [math.exp(8 * gate * math.log(radius)) for gate in (1, 0.5, 0.01)]
        assert found == pytest.approx(wanted, abs=1e-4)
        w = torch.tensor([math.log(math.expm1(-math.log(radius)))], dtype=torch.float64)
        form = make().records()[0].form
        for gate, eigenvalue in zip((1.0, 0.5, 0.01), found, strict=True):
            derived = form.derive("eigenvalue", {"weight": w.numpy(), "gate_mean": np.array([gate])})
            assert derived.item() == pytest.approx(eigenvalue, rel=1e-6)


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, _ = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert layer.last_state.dtype == layer.gates()["r"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.02)
