"""DSS: the published kernels, a convolution that equals the scan, and modes that may grow under a softmax."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from stablessm_core.layers import DSS
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers.dss import Dss
from stablessm_core.watch.watchable import watched_records

NATIVE = {"exp": "exp", "softmax": "direct"}


def made(d_model: int = 3, d_state: int = 4, version: str = "exp", map_: str | None = None, **options: Any) -> DSS:
    torch.manual_seed(0)
    map_ = map_ or NATIVE[version]
    return DSS(d_model, d_state, reparameterization=get_reparameterization(map_, time="continuous"), version=version, **options)


def growing(layer: DSS) -> DSS:
    """The layer, changed so that every other mode grows if its map allows growth."""
    with torch.no_grad():
        layer.w[::2] = 0.3
        layer.log_dt[:, 1] += 0.2  # training makes the two step sizes differ
    return layer


@pytest.mark.parametrize(("length", "normalised"), [(1, None), (2, None), (7, 5), (7, 9), (333, None), (333, 400)])
@pytest.mark.parametrize("version", ["exp", "softmax"])
def test_the_convolution_form_matches_the_scan_form(version: str, length: int, normalised: int | None) -> None:
    known = normalised if version == "softmax" else None
    layers = [made(3, 5, version, form=form, length=known).double() for form in ("convolution", "scan")]
    if version == "softmax":
        layers = [growing(layer) for layer in layers]
    x = torch.randn(2, length, 3, dtype=torch.float64)
    convolved, scanned = (layer(x) for layer in layers)
    torch.testing.assert_close(convolved, scanned, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(layers[0].last_state, layers[1].last_state, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("version", ["exp", "softmax"])
def test_single_steps_match_the_convolution_even_if_modes_grow(version: str) -> None:
    layer = made(2, 3, version, length=20 if version == "softmax" else None).double()
    if version == "softmax":
        growing(layer)
    x = torch.randn(2, 20, 2, dtype=torch.float64)
    state, steps = layer.initial_state(2), []
    for x_t in x.unbind(1):
        y, state = layer.step(x_t, state)
        steps.append(y)
    torch.testing.assert_close(torch.stack(steps, 1), layer(x), rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state.abs().amax(1), layer.last_state, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("version", "kernel"),
    [("softmax", [-0.21295263, -0.13902459, -0.04509904]), ("exp", [0.30017163, 0.26187064, 0.16875877])],
)
@pytest.mark.parametrize("form", ["convolution", "scan"])
def test_kernels_match_known_values(version: str, kernel: list[float], form: str) -> None:
    layer = made(1, 2, version, "direct", form=form).double()
    layer.readout = nn.Identity()
    with torch.no_grad():
        layer.w.copy_(torch.tensor([-0.5, 0.2]))
        layer.Lambda_imag.copy_(torch.tensor([3.0, 5.0]))
        layer.W.copy_(torch.tensor([[[1.0, 1.0], [2.0, -1.0]]]))
        layer.log_dt.fill_(math.log(0.1))
        layer.D.zero_()
    impulse = torch.zeros(1, 16, 1, dtype=torch.float64)
    impulse[0, 0] = 1
    torch.testing.assert_close(layer(impulse)[0, :3, 0].tolist(), kernel, rtol=0, atol=4e-7)


def test_the_softmax_version_weights_the_steps_with_weights_that_sum_to_1() -> None:
    layer = growing(made(1, 2, "softmax").double())
    layer.readout = nn.Identity()
    lambda_, z = layer._modes()
    share = torch.softmax((z.real[..., None] * torch.arange(50)), -1)  # the weights of real modes
    with torch.no_grad():
        layer.Lambda_imag.zero_()
        layer.D.zero_()
        layer.W.copy_(torch.tensor([1.0, 0.0]))
    impulse = torch.zeros(1, 50, 1, dtype=torch.float64)
    impulse[0, 0] = 1
    wanted = (share / lambda_.real[:, None]).sum(1)[0]
    # the published reciprocal adds 1e-7 to the denominator
    torch.testing.assert_close(layer(impulse)[0, :, 0], wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("size", "left"), [(0.01, 0.999), (0.00125, 0.94), (0.001, 0.909), (1e-5, 0.001)])
def test_the_epsilon_of_the_softmax_version_damps_a_mode_as_documented(size: float, left: float) -> None:
    layer = made(1, 1, "softmax", length=40).double()
    layer.readout = nn.Identity()
    dt, length = 1e-3, 40
    rate = math.sqrt(size / (dt * length))  # |e^(zL) - 1| |lambda| is nearly dt L rate^2
    size = -math.expm1(-rate * dt * length) * rate
    with torch.no_grad():
        layer.w.fill_(-rate)
        layer.Lambda_imag.zero_()
        layer.log_dt.fill_(math.log(dt))
        layer.W.copy_(torch.tensor([1.0, 0.0]))
        layer.D.zero_()
    impulse = torch.zeros(1, 40, 1, dtype=torch.float64)
    impulse[0, 0] = 1
    undamped = math.expm1(-rate * dt) / (-rate * math.expm1(-rate * dt * length))
    damping = layer(impulse)[0, 0, 0].item() / undamped
    assert damping == pytest.approx(size**2 / (size**2 + 1e-7), rel=1e-5)
    assert damping == pytest.approx(left, abs=0.01)


def test_the_kernel_stays_finite_even_if_modes_grow_beyond_float32() -> None:
    layer = growing(made(3, 4, "softmax"))
    with torch.no_grad():
        layer.log_dt.fill_(0.0)
    y = layer(torch.randn(2, 1000, 3))  # modes reach e^300
    y.sum().backward()
    assert y.isfinite().all()
    assert layer.last_state is not None
    assert layer.last_state.isfinite().all()
    assert all(p.grad.isfinite().all() for p in layer.parameters())


@pytest.mark.parametrize("version", ["exp", "softmax"])
@pytest.mark.parametrize("form", ["convolution", "scan"])
@pytest.mark.slow
def test_gradients_are_exact(form: str, version: str) -> None:
    layer = made(2, 3, version, form=form).double()
    if version == "softmax":
        growing(layer)
    x = torch.randn(2, 7, 2, dtype=torch.float64, requires_grad=True)
    names, values = zip(*layer.named_parameters(), strict=True)

    def run(x: torch.Tensor, *values: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (x,))
        return y

    assert torch.autograd.gradcheck(run, (x, *values))


def test_modes_start_from_hippo_and_both_step_sizes_of_a_channel_start_equal() -> None:
    layer = made(5, 2)
    torch.testing.assert_close(layer.Lambda_imag.detach(), torch.tensor([4.603293, 0.556501]), rtol=0, atol=1e-5)
    torch.testing.assert_close(layer.reparameterization(layer.w).detach(), torch.full((2,), -0.5))
    assert torch.equal(layer.log_dt[:, 0], layer.log_dt[:, 1])


def test_the_records_watch_the_shared_modes_and_the_step_sizes_of_all_channels() -> None:
    for version in ("exp", "softmax"):
        layer = made(5, 4, version)
        with torch.no_grad():
            layer.log_dt[:, 0] = torch.tensor([0.1, 0.2, 0.3, 0.05, 0.35]).log()
        layer(torch.randn(2, 9, 5))
        modes, steps = watched_records(layer)
        assert (modes.id, modes.width, steps.id, steps.width) == ("0", 4, "0.log_dt", 10)
        assert modes.form.bounded is (version == "exp")
        torch.testing.assert_close(layer.gates()["dt"], torch.tensor([[0.05], [0.2], [0.35]]))
        numbers = {"weight": layer.w.detach().double().numpy(), "gate_mean": np.full(4, 0.2)}
        np.testing.assert_allclose(modes.form.derive("eigenvalue", numbers), np.exp(-0.5 * 0.2), rtol=1e-6)


@pytest.mark.parametrize("version", ["exp", "softmax"])
def test_the_layer_has_the_published_number_of_parameters(version: str) -> None:
    kernel = 2 * 64 + 2 * 64 * 64 + 2 * 64
    assert Dss(version=version).parameters(64) == kernel + 64 + 64 * 64 + 64
    assert Dss(version=version, d_state=4).parameters(3) == sum(p.numel() for p in made(version=version).parameters())


def test_a_softmax_over_the_length_of_each_input_does_not_support_single_steps() -> None:
    layer = made(version="softmax")
    for call in (lambda: layer.initial_state(1), lambda: layer.step(torch.zeros(1, 3), torch.zeros(1, 3, 4))):
        with pytest.raises(ValueError, match="needs a length"):
            call()


def test_each_version_has_its_native_map_and_invalid_options_are_refused() -> None:
    assert {version: Dss(version=version).native for version in NATIVE} == NATIVE
    for wrong in ({"version": "clip"}, {"length": 5}, {"dt_min": 1.0}):
        with pytest.raises(ValidationError):
            Dss.model_validate(wrong)
