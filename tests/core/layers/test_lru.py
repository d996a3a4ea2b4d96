"""The linear recurrent unit: its recurrence, its initial eigenvalues on the ring, the published numbers."""

import math
from dataclasses import replace

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from stablessm_core.layers import LRU
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.lru import Lru


def made(d_model: int = 3, d_state: int = 4, map_: str = "exp", **options: object) -> LRU:
    torch.manual_seed(0)
    return LRU(d_model, d_state, reparameterization=get_reparameterization(map_), **options)


@pytest.mark.parametrize("map_", ["exp", "best", "direct"])
@pytest.mark.parametrize(("length", "d_model", "d_state"), [(1, 3, 4), (2, 1, 1), (7, 5, 3), (333, 3, 4)])
def test_the_layer_computes_the_papers_recurrence(map_: str, length: int, d_model: int, d_state: int) -> None:
    layer = made(d_model, d_state, map_).double()
    x = torch.randn(2, length, d_model, dtype=torch.float64)
    lambda_ = layer.reparameterization(layer.w) * torch.exp(1j * layer.theta_log.exp())
    B, C = layer.gamma_log.exp()[:, None] * torch.view_as_complex(layer.B), torch.view_as_complex(layer.C.detach())
    h, outputs = torch.zeros(2, d_state, dtype=torch.complex128), []
    for t in range(length):
        h = lambda_ * h + x[:, t].to(B.dtype) @ B.T
        outputs.append(layer.readout((h @ C.T).real + layer.D * x[:, t]))
    torch.testing.assert_close(layer(x), torch.stack(outputs, 1), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layer.last_state, h.abs())


def test_all_scan_backends_give_the_same_output() -> None:
    x = torch.randn(2, 65, 3, dtype=torch.float64)
    wanted = made(scan_backend="reference").double()(x)
    torch.testing.assert_close(made(scan_backend="torch").double()(x), wanted, rtol=1e-10, atol=1e-10)


def test_a_long_sequence_gives_finite_outputs() -> None:
    assert made()(torch.randn(1, 4097, 3)).isfinite().all()


def impulse_response(layer: LRU, length: int) -> torch.Tensor:
    layer.readout = nn.Identity()
    x = torch.zeros(1, length, 1, dtype=torch.float64)
    x[0, 0] = 1
    return layer(x)[0, :, 0]


def one_mode(nu: float, theta_log: float) -> LRU:
    layer = made(1, 1).double()
    with torch.no_grad():
        layer.w.fill_(nu)
        layer.theta_log.fill_(theta_log)
        layer.gamma_log.zero_()
        layer.D.zero_()
        layer.B.copy_(torch.tensor([1.0, 0.0]))
        layer.C.copy_(torch.tensor([1.0, 0.0]))
    return layer


def test_the_eigenvalue_and_its_gradients_match_known_values() -> None:
    layer = one_mode(-3.0, -1.0)
    K = impulse_response(layer, 200)
    assert math.hypot(K[1].item(), one_mode(-3.0, -1.0)._lambda().imag.item()) == pytest.approx(0.951431993, abs=1e-9)
    dw, dtheta = torch.autograd.grad(K.sum(), [layer.w, layer.theta_log])
    assert dw.item() == pytest.approx(0.353556334, abs=1e-9)
    assert dtheta.item() == pytest.approx(-0.714572919, abs=1e-9)


def test_gradients_are_exact() -> None:
    layer = made(2, 3).double()
    x = torch.randn(2, 7, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(run, (x, *values))


@pytest.mark.parametrize(("r", "w", "gamma"), [(0.9, -2.250367, 0.435890), (0.999, -6.907255, 0.044710)])
def test_initial_weights_and_scales_follow_from_the_radius(r: float, w: float, gamma: float) -> None:
    layer = made(2, 5, r_min=r, r_max=r)
    torch.testing.assert_close(layer.w, torch.full((5,), w), rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.gamma_log.exp(), torch.full((5,), gamma), rtol=0, atol=1e-6)


def test_initial_eigenvalues_are_uniform_over_the_area_of_the_ring() -> None:
    layer = made(1, 20_000, r_min=0.5, r_max=0.9, max_phase=1.5)
    area = layer.reparameterization(layer.w).detach().square()
    angle = layer.theta_log.detach().exp()
    for values, low, high in ((area, 0.25, 0.81), (angle, 0.0, 1.5)):
        assert values.min() >= low - 1e-6
        assert values.max() <= high + 1e-6
        shares = values.histc(10, low, high) / len(values)
        torch.testing.assert_close(shares, torch.full((10,), 0.1), rtol=0, atol=0.01)


def test_states_of_a_new_layer_have_the_same_scale_as_the_input() -> None:
    layer = made(64, 128, r_min=0.5, r_max=0.99)
    with torch.no_grad():
        layer(torch.randn(16, 2000, 64))
    assert layer.last_state is not None
    assert layer.last_state.square().mean().sqrt().item() == pytest.approx(1.0, abs=0.1)


def test_the_record_watches_the_modulus_through_its_map_and_the_angle() -> None:
    layer = made(map_="best")
    (record,) = layer.records()
    assert record.form == replace(layer.reparameterization.form, phase="angle")
    kinds = {"weight": record.weight.detach().double().numpy(), "phase_weight": record.phase.detach().double().numpy()}
    size, angle = record.form.derive("eigenvalue", kinds), record.form.derive("phase", kinds)
    torch.testing.assert_close(torch.polar(torch.tensor(size), torch.tensor(angle)), layer.double()._lambda().detach())


@pytest.mark.parametrize(("d_model", "d_state", "count"), [(64, 64, 24_960), (3, 5, 102)])
def test_the_layer_has_the_published_number_of_parameters(d_model: int, d_state: int, count: int) -> None:
    readout = 2 * d_model * d_model + 2 * d_model
    assert count == 3 * d_state + 4 * d_state * d_model + d_model + readout
    assert Lru(d_state=d_state).parameters(d_model) == count
    assert sum(p.numel() for p in made(d_model, d_state).parameters()) == count


def test_a_ring_with_r_max_below_r_min_is_refused() -> None:
    with pytest.raises(ValidationError, match="above r_min"):
        Lru(r_min=0.9, r_max=0.5)
