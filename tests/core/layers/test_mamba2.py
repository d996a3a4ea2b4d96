"""Mamba-2: one result in every form, the published block and initial weights, correct gates and states."""

import math

import numpy as np
import pytest
import torch
from pydantic_core import PydanticCustomError
from torch.nn import functional

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.mamba2 import Mamba2Block
from stablessm_core.maps import MAPS, formulas
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.mamba2 import Mamba2
from stablessm_core.watch.watchable import watched_records

REACHING = [
    name
    for name, map_ in MAPS.items()
    if "continuous" in map_.forms and all(formulas(name, "continuous", np).reachable.contains(x) for x in (-16.0, -1.0))
]


def make(d_model: int = 5, seed: int = 0, **options: object) -> Mamba2Block:
    torch.manual_seed(seed)
    return Mamba2Block(d_model, **({"d_state": 3, "head_width": 2} | options))


def x_of(length: int, d_model: int = 5, batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, length, d_model, generator=torch.Generator().manual_seed(2), dtype=torch.float64)


def stepped(layer: Mamba2Block, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    state, outputs = layer.initial_state(len(x)), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        outputs.append(y)
    return torch.stack(outputs, 1), state[1]


@pytest.mark.parametrize(
    ("d_model", "length", "options"),
    [(1, 7, {}), (5, 1, {}), (5, 2, {"n_groups": 5}), (6, 70, {"head_width": 3, "n_groups": 2}), (3, 4097, {"d_state": 2})],
)
@pytest.mark.slow
def test_single_steps_match_every_form_of_the_recurrence(d_model: int, length: int, options: dict[str, int]) -> None:
    layer, x = make(d_model, **options).double(), x_of(length, d_model)
    with torch.no_grad():
        one_by_one, S = stepped(layer, x)
        for layer.scan_backend in ("auto", "reference"):
            torch.testing.assert_close(layer(x), one_by_one, rtol=1e-10, atol=1e-10)
            torch.testing.assert_close(layer.last_state, S.abs().amax((2, 3)), rtol=1e-10, atol=1e-10)


@pytest.mark.slow
def test_gradients_are_right() -> None:
    layer, x = make(2, n_groups=2).double(), x_of(7, 2, 1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, *_: layer(x), (x, *layer.parameters()))


def test_the_block_computes_the_published_equations() -> None:
    """Computes the paper's block step by step: projections, convolution, recurrence, skip connection, gate, norm."""
    layer, u = make(4, n_groups=2, head_width=2).double(), x_of(11, 4)
    with torch.no_grad():
        layer.D.copy_(torch.linspace(-1, 2, 4))
        layer.norm.weight.copy_(torch.linspace(0.5, 2, 8))
    xbc = functional.silu(layer.conv(u @ layer.in_xbc.weight.T))
    x, B, C = xbc[..., :8], xbc[..., 8:14].view(2, 11, 2, 3), xbc[..., 14:].view(2, 11, 2, 3)
    dt = functional.softplus(u @ layer.in_dt.weight.T + layer.dt_bias)
    y = torch.zeros(2, 11, 8, dtype=torch.float64)
    for h in range(4):
        S = torch.zeros(2, 2, 3, dtype=torch.float64)
        for t in range(11):
            x_t, B_t, C_t = x[:, t, 2 * h : 2 * h + 2], B[:, t, h // 2], C[:, t, h // 2]
            decay = torch.exp(-dt[:, t, h] * layer.w[h].exp())
            S = decay[:, None, None] * S + dt[:, t, h, None, None] * x_t[:, :, None] * B_t[:, None, :]
            y[:, t, 2 * h : 2 * h + 2] = (S @ C_t[..., None])[..., 0] + layer.D[h] * x_t
    y = (y * functional.silu(u @ layer.in_z.weight.T)).view(2, 11, 2, 4)
    y = (y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(2) * layer.norm.weight
    torch.testing.assert_close(layer(u), y @ layer.out_proj.weight.T, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", REACHING)
def test_a_new_layer_computes_the_same_function_with_every_map(name: str) -> None:
    x, native = x_of(50).float(), make()
    layer = make(reparameterization=get_reparameterization(name, time="continuous"))
    torch.testing.assert_close(layer(x), native(x), rtol=1e-4, atol=1e-5)
    assert native.reparameterization.name == "exp"


def test_initial_weights_follow_the_published_initialization() -> None:
    layer = make(256, d_state=4, head_width=1)
    rates, dt = layer.w.exp(), functional.softplus(layer.dt_bias)
    assert 1 < rates.min().item() < 1.5
    assert 15.5 < rates.max().item() < 16
    assert rates.mean().item() == pytest.approx(8.5, abs=1)
    assert 1e-3 * 0.999 < dt.min().item() < 2e-3
    assert 5e-2 < dt.max().item() < 1e-1 * 1.001
    assert set(layer.D.tolist()) == set(layer.norm.weight.tolist()) == {1.0}


@pytest.mark.parametrize(("d_model", "d_state", "count"), [(8, 4, 628), (64, 16, 29696)])
def test_the_layer_has_as_many_parameters_as_the_public_implementation(d_model: int, d_state: int, count: int) -> None:
    section = Mamba2(d_state=d_state, head_width=4)
    assert section.parameters(d_model) == count
    given = Surroundings(d_model, get_reparameterization("exp", time="continuous"))
    layers = []
    for _ in range(2):
        torch.manual_seed(3)
        layers.append(build_layer(section, given))
    assert sum(p.numel() for p in layers[0].parameters()) == count
    assert section.eigenvalues(d_model) == watched_records(layers[0])[0].width == 2 * d_model // 4
    for a, b in zip(*(layer.parameters() for layer in layers), strict=True):
        assert torch.equal(a, b)
    assert section.initial_range(d_model) == (-16.0, -1.0)


def test_widths_and_groups_that_do_not_divide_evenly_are_refused() -> None:
    Mamba2().check(64)
    with pytest.raises(PydanticCustomError, match=r"is 16; allowed: a divisor of expand . d_model = 10"):
        Mamba2().check(5)
    with pytest.raises(PydanticCustomError, match="is 3; allowed: a divisor of the 8 heads"):
        Mamba2(n_groups=3).check(64)
    with pytest.raises(ValueError, match="must divide 10 channels"):
        Mamba2Block(5)


def test_eigenvalues_and_step_sizes_are_watched() -> None:
    layer, x = make().double(), x_of(9)
    first, second = watched_records(layer)
    assert first.form.data | {"a": 1, "b": 0} == {
        "map": "exp", "time": "continuous", "rule": "zoh", "scale": 1.0, "a": 1, "b": 0, "dt": None, "gate": True,
    }  # fmt: skip
    assert (first.width, first.path, first.record.gate, first.record.gates) == (5, "w", "dt", 5)
    assert first.record.gradient
    assert (second.id, second.path, second.width) == ("0.dt_bias", "dt_bias", 5)
    layer(x)
    dt = functional.softplus(x @ layer.in_dt.weight.T + layer.dt_bias).detach()
    rate = layer.w.detach().exp()
    lambda_bar = torch.exp(-dt * rate)
    lowest, mean, highest = layer.gates()["dt"]
    torch.testing.assert_close(torch.exp(-highest * rate), lambda_bar.amin((0, 1)))
    torch.testing.assert_close(torch.exp(-mean * rate), lambda_bar.log().mean((0, 1)).exp())
    torch.testing.assert_close(torch.exp(-lowest * rate), lambda_bar.amax((0, 1)))


def test_the_recurrence_stays_in_float32_under_autocast() -> None:
    layer, x = make(16, d_state=4, head_width=8), x_of(64, 16).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y, (_, state) = layer(x), layer.step(x[:, 0], layer.initial_state(2))
    assert layer.last_state is not None
    assert state[1].dtype == layer.last_state.dtype == layer.gates()["dt"].dtype == torch.float32
    torch.testing.assert_close(y.float(), layer(x), rtol=0.1, atol=0.05)


def test_torch_func_vmap_gives_the_same_outputs_as_the_layer() -> None:
    layer, x = make().double(), x_of(7)
    wanted = torch.stack([layer(x), layer(2 * x)])
    torch.testing.assert_close(torch.func.vmap(layer)(torch.stack([x, 2 * x])), wanted, rtol=1e-10, atol=1e-12)
    assert math.isfinite(layer(x).sum().item())
