"""S5: its recurrence with both rules, its HiPPO initialisation, the published number of parameters."""

import math
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch.nn import functional

from stablessm_core.layers import S5
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.s5 import S5 as Section


def made(d_model: int = 3, d_state: int = 8, map_: str = "direct", **options: Any) -> S5:
    torch.manual_seed(0)
    return S5(d_model, d_state, reparameterization=get_reparameterization(map_, time="continuous"), **options)


def outputs(layer: S5, x: torch.Tensor) -> torch.Tensor:
    """The outputs of the recurrence before the readout, computed step by step."""
    lambda_ = torch.complex(layer.reparameterization(layer.w), layer.Lambda_imag)
    dt = layer.log_dt.exp()
    if layer.rule == "zoh":
        lambda_bar, gain = torch.exp(dt * lambda_), (torch.exp(dt * lambda_) - 1) / lambda_
    else:
        lambda_bar, gain = (1 + dt * lambda_ / 2) / (1 - dt * lambda_ / 2), dt / (1 - dt * lambda_ / 2)
    B, C = gain[:, None] * torch.view_as_complex(layer.B), torch.view_as_complex(layer.C.detach())
    h, y = torch.zeros(len(x), len(B), dtype=B.dtype), []
    for x_t in x.unbind(1):
        h = lambda_bar * h + x_t.to(B.dtype) @ B.T
        y.append(2 * (h @ C.T).real + layer.D * x_t)
    return torch.stack(y, 1)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize(("length", "d_model", "d_state", "blocks"), [(1, 3, 8, 2), (2, 1, 2, 1), (7, 5, 6, 1), (333, 3, 12, 3)])
def test_the_layer_computes_the_papers_recurrence(rule: str, length: int, d_model: int, d_state: int, blocks: int) -> None:
    layer = made(d_model, d_state, rule=rule, blocks=blocks).double()
    x = torch.randn(2, length, d_model, dtype=torch.float64)
    torch.testing.assert_close(layer(x), layer.readout(outputs(layer, x)), rtol=1e-10, atol=1e-10)


def test_a_long_sequence_gives_finite_outputs() -> None:
    assert made()(torch.randn(1, 4097, 3)).isfinite().all()


@pytest.mark.parametrize("activation", ["half_glu1", "half_glu2", "full_glu", "gelu"])
def test_the_activation_option_selects_the_readout(activation: str) -> None:
    layer = made(activation=activation).double()
    x = torch.randn(2, 9, 3, dtype=torch.float64)
    y = outputs(layer, x)
    g = functional.gelu(y)
    weights = dict(layer.readout.named_parameters())
    linear = functional.linear(g, weights["weight"], weights["bias"]) if weights else g
    wanted = {
        "gelu": lambda: g,
        "half_glu1": lambda: g * linear.sigmoid(),
        "half_glu2": lambda: y * linear.sigmoid(),
        "full_glu": lambda: linear[..., :3] * linear[..., 3:].sigmoid(),
    }[activation]()
    torch.testing.assert_close(layer(x), wanted, rtol=1e-10, atol=1e-10)
    assert Section(d_state=8, activation=activation).parameters(3) == sum(p.numel() for p in layer.parameters())


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_gradients_are_exact(rule: str) -> None:
    layer = made(2, 4, rule=rule).double()
    x = torch.randn(2, 7, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(run, (x, *values))


def test_modes_start_from_hippo_in_each_block() -> None:
    layer = made(3, 8, blocks=2)
    torch.testing.assert_close(layer.Lambda_imag.detach(), torch.tensor([0.556501, 4.603293] * 2), rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.w.detach(), torch.full((4,), -0.5))


def test_initial_input_and_output_matrices_are_products_with_the_eigenvectors() -> None:
    layer = made(500, 64, blocks=2)
    assert layer.B.square().sum(-1).mean().item() == pytest.approx(1 / 64, rel=0.05)
    assert layer.C.square().sum(-1).mean().item() == pytest.approx(2 / 64, rel=0.05)
    steps = made(1, 4000, blocks=200).log_dt
    assert math.log(1e-3) <= steps.min().item() <= math.log(1e-3) + 0.05
    assert math.log(1e-1) - 0.05 <= steps.max().item() <= math.log(1e-1)


@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
@pytest.mark.parametrize("map_", ["direct", "clip", "best"])
def test_the_record_watches_the_eigenvalues_of_the_recurrence(map_: str, rule: str) -> None:
    layer = made(map_=map_, rule=rule).double()
    (record,) = layer.records()
    kinds = {
        "weight": layer.w.detach().numpy(),
        "dt": layer.log_dt.detach().exp().numpy(),
        "phase_weight": layer.Lambda_imag.detach().numpy(),
    }
    size, angle = (torch.tensor(record.form.derive(kind, kinds)) for kind in ("eigenvalue", "phase"))
    torch.testing.assert_close(torch.polar(size, angle), layer._transition()[0].detach())


def test_eigenvalues_of_the_published_layer_can_become_unstable() -> None:
    layer = made()
    with torch.no_grad():
        layer.w[1] = 20.0
    layer(torch.randn(1, 5000, 3))
    assert layer.last_state is not None
    assert layer.last_state[0].isfinite().tolist() == [True, False, True, True]


@pytest.mark.parametrize(("d_model", "d_state"), [(64, 64), (3, 8)])
def test_the_layer_has_the_published_number_of_parameters(d_model: int, d_state: int) -> None:
    P = d_state // 2
    count = 2 * P + 2 * P * d_model + 2 * d_model * P + d_model + P + d_model * d_model + d_model
    assert Section(d_state=d_state).parameters(d_model) == count
    assert sum(p.numel() for p in made(d_model, d_state).parameters()) == count


def test_a_number_of_blocks_that_does_not_divide_the_states_is_refused() -> None:
    for wrong in ({"d_state": 8, "blocks": 3}, {"d_state": 7}, {"d_state": 65_536}, {"dt_max": 1e-4}):
        with pytest.raises(ValidationError):
            Section.model_validate(wrong)


def test_gradients_in_float32_match_float64_where_eigenvalues_underflow() -> None:
    layer, found = made(d_state=20), []
    x = torch.randn(2, 30, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        layer.w.fill_(-1.0)
        layer.log_dt.copy_(torch.linspace(60, 110, 10).log())  # from -88 to -103, e^(dt w) is a subnormal float32
    for dtype in (torch.float32, torch.float64):
        layer.to(dtype).zero_grad()
        layer(x.to(dtype)).square().mean().backward()
        found.append([p.grad.detach().double() for p in layer.parameters() if p.grad is not None])
    largest = max(float(wanted.abs().max()) for wanted in found[1])
    for got, wanted in zip(*found, strict=True):  # the true gradient of step sizes is about 1e-23: only rounding is left
        torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-7 * largest)
