"""Gated DeltaNet: one result in every form, the published layer and initial weights, parity, correct eigenvalues and gates."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.gated_deltanet import GatedDeltaNetBlock
from stablessm_core.maps import MAPS, formulas
from stablessm_core.matrix_state import delta_rule
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.gated_deltanet import GatedDeltaNet
from stablessm_core.watch.watchable import watched_records

REACHING = [
    name
    for name, map_ in MAPS.items()
    if "continuous" in map_.forms and all(formulas(name, "continuous", np).reachable.contains(x) for x in (-16.0, -0.01))
]


def make(d_model: int = 5, seed: int = 0, **options: object) -> GatedDeltaNetBlock:
    torch.manual_seed(seed)
    return GatedDeltaNetBlock(d_model, **({"n_heads": 2, "head_width": 3} | options))


def x_of(length: int, d_model: int = 5, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


@pytest.mark.parametrize("allow_neg_eigval", [False, True])
@pytest.mark.parametrize(("d_model", "length"), [(1, 7), (5, 1), (6, 2), (7, 70), (3, 4097)])
@pytest.mark.slow
def test_single_steps_match_every_form_of_the_recurrence(d_model: int, length: int, allow_neg_eigval: bool) -> None:
    layer, x = make(d_model, allow_neg_eigval=allow_neg_eigval).double(), 3 * x_of(length, d_model)
    with torch.no_grad():
        state, outputs = layer.initial_state(2), []
        for x_t in x.unbind(1):
            y, state = layer.step(x_t, state)
            outputs.append(y)
        for layer.scan_backend in ("auto", "reference"):
            torch.testing.assert_close(layer(x), torch.stack(outputs, 1), rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer.last_state, state[1].abs().amax((2, 3)), rtol=1e-10, atol=1e-10)


def test_gradients_are_right() -> None:
    layer, x = make(2, head_width=2).double(), x_of(7, 2, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


@pytest.mark.parametrize("allow_neg_eigval", [False, True])
def test_the_layer_computes_the_published_recurrence(allow_neg_eigval: bool) -> None:
    """Computes the published recurrence with the transition as an explicit matrix."""
    layer, x = make(allow_neg_eigval=allow_neg_eigval).double(), x_of(9)
    qkv = functional.silu(layer.conv(x @ layer.in_qkv.weight.T))
    q, k, v = (part.unflatten(-1, (2, -1)) for part in qkv.split([6, 6, 12], -1))
    q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
    alpha = torch.exp(-layer.w.exp() * functional.softplus(x @ layer.in_dt.weight.T + layer.dt_bias))
    beta = (1 + allow_neg_eigval) * (x @ layer.in_beta.weight.T).sigmoid()
    S, outputs = torch.zeros(2, 2, 3, 6, dtype=torch.float64), []
    for t in range(9):
        erased = torch.eye(3) - beta[:, t, :, None, None] * k[:, t, :, :, None] * k[:, t, :, None]
        S = alpha[:, t, :, None, None] * erased @ S + beta[:, t, :, None, None] * k[:, t, :, :, None] * v[:, t, :, None]
        outputs.append(torch.einsum("bhk,bhkv->bhv", q[:, t], S) / 3**0.5)
    o = torch.stack(outputs, 1)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt()
    o = o.flatten(2) * functional.silu(x @ layer.in_gate.weight.T)
    torch.testing.assert_close(layer(x), o @ layer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


def test_a_state_that_changes_its_sign_computes_parity() -> None:
    """Uses beta = 2 at every 1 and no change at a 0. A decay in (0, 1) cannot count parity."""
    bits = torch.randint(2, (1, 300), generator=torch.Generator().manual_seed(0)).double()
    key = torch.ones(1, 300, 1, 1, dtype=torch.float64)
    o, _ = delta_rule(key, key, 0 * key, 2 * bits[..., None], 0 * bits[..., None], torch.ones(1, 1, 1, 1, dtype=torch.float64))
    assert torch.equal(o.flatten(), 1 - 2 * (bits.flatten().cumsum(0) % 2))


@pytest.mark.parametrize("name", REACHING)
def test_a_new_layer_computes_the_same_function_with_every_map(name: str) -> None:
    x, native = x_of(50).float(), make()
    layer = make(reparameterization=get_reparameterization(name, time="continuous"))
    torch.testing.assert_close(layer(x), native(x), rtol=1e-4, atol=1e-5)
    assert native.reparameterization.name == "exp"


def test_initial_weights_follow_the_published_initialization() -> None:
    layer = make(4, n_heads=500, head_width=1)
    rates, dt = layer.w.exp(), functional.softplus(layer.dt_bias)
    assert 0.0099 < rates.min().item() < 0.5
    assert 15.5 < rates.max().item() < 16
    assert rates.mean().item() == pytest.approx(8, abs=1)
    assert 1e-3 * 0.999 < dt.min().item() < 2e-3
    assert 5e-2 < dt.max().item() < 1e-1 * 1.001


@pytest.mark.parametrize("options", [{}, {"n_heads": 3, "head_width": 5, "expand": 1, "allow_neg_eigval": True}])
def test_the_layer_is_built_from_its_configuration_section(options: dict[str, int]) -> None:
    section = GatedDeltaNet(**options)
    given = Surroundings(7, get_reparameterization("exp", time="continuous"))
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(section, given))
    assert section.parameters(7) == sum(p.numel() for p in layers[0].parameters())
    assert section.eigenvalues(7) == watched_records(layers[0])[0].width
    assert layers[0].largest_beta == 1 + section.allow_neg_eigval
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)


def test_the_layer_has_as_many_parameters_as_the_public_implementation() -> None:
    """fla's layer has projections, convolutions without bias, A_log and dt_bias, and one norm weight per head dimension."""
    d, heads, keys, values = 64, 4, 64, 128
    public = d * (2 * keys + 3 * values + 2 * heads) + 4 * (2 * keys + values) + 2 * heads + values // heads
    assert GatedDeltaNet().parameters(64) == public == 34344


def test_eigenvalues_step_sizes_and_beta_are_watched() -> None:
    layer, x = make().double(), x_of(9)
    first, dt_bias, beta = watched_records(layer)
    assert first.form.data | {"a": 1, "b": 0} == {
        "map": "exp", "time": "continuous", "rule": "zoh", "scale": 1.0, "a": 1, "b": 0, "dt": None, "gate": True,
    }  # fmt: skip
    assert (first.width, first.path, first.record.gate, first.record.gates) == (2, "w", "dt", 2)
    assert first.record.gradient
    assert (dt_bias.id, dt_bias.path, dt_bias.width) == ("0.dt_bias", "dt_bias", 2)
    assert (beta.id, beta.path, beta.width) == ("0.beta", "in_beta.weight", 2)
    layer(x)
    dt = functional.softplus(x @ layer.in_dt.weight.T + layer.dt_bias).detach()
    torch.testing.assert_close(layer.gates()["dt"], torch.stack([dt.amin((0, 1)), dt.mean((0, 1)), dt.amax((0, 1))]))


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, (_, state) = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert state[1].dtype == layer.last_state.dtype == layer.gates()["dt"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.05)


def test_torch_func_vmap_gives_the_same_outputs_as_the_layer() -> None:
    layer, x = make().double(), x_of(7)
    wanted = torch.stack([layer(x), layer(2 * x)])
    torch.testing.assert_close(torch.func.vmap(layer)(torch.stack([x, 2 * x])), wanted, rtol=1e-10, atol=1e-12)
