"""Higher derivatives and torch.func derivatives of the maps, the input gain and the layer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap

from stablessm_core.layers import StableSSM
from stablessm_core.maps import MAPS
from stablessm_core.numerics.discretization import input_gain
from stablessm_core.reparameterization import get_reparameterization

PAIRS = [(name, time) for name, map_ in MAPS.items() for time in map_.forms]
SMOOTH = [(name, time) for name, time in PAIRS if name not in ("relu", "clip", "heavytail")]

# PyTorch emits this warning itself when it first uses forward mode
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:`torch.jit.script`:DeprecationWarning")]


def weights(name: str) -> Tensor:
    """Weights that avoid the kinks of relu, clip and heavytail and reach every branch."""
    size = 0.2 if name == "clip" else 1.0
    return size * torch.tensor([-4.6, -1.2, -0.4, 0.3, 0.7, 1.5, 4.2], dtype=torch.float64)


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_second_derivatives_of_a_map_match_finite_differences(name: str, time: str) -> None:
    map_, w = get_reparameterization(name, time=time), weights(name).requires_grad_()
    assert torch.autograd.gradgradcheck(map_, (w,))
    dt = torch.full_like(w, 0.05).requires_grad_()
    assert torch.autograd.gradgradcheck(map_.lambda_bar, (w, dt) if time == "continuous" else (w,))


@pytest.mark.parametrize(("name", "time"), SMOOTH)
def test_smooth_maps_have_the_right_second_derivative_at_weight_zero(name: str, time: str) -> None:
    map_, step = get_reparameterization(name, time=time), 1e-5
    w = torch.zeros(1, dtype=torch.float64)
    second = jacrev(grad(lambda w: map_(w).sum()))(w)
    wanted = (map_.derivative(w + step) - map_.derivative(w - step)) / (2 * step)
    torch.testing.assert_close(second[0], wanted, rtol=1e-6, atol=1e-9)


def test_second_derivatives_of_the_input_gain_are_exact_inside_and_outside_its_series() -> None:
    lambda_ = torch.tensor([-30.0, -2.0, -1.001, -0.999, -0.3, 0.0, 0.3, 0.999, 1.001, 3.0], dtype=torch.float64)
    inputs = lambda_.requires_grad_(), torch.full_like(lambda_, 0.1).requires_grad_()
    assert torch.autograd.gradgradcheck(input_gain, inputs, atol=1e-8, rtol=1e-5)
    assert torch.autograd.gradcheck(input_gain, inputs, check_forward_ad=True)


def layer_and_loss(name: str, time: str):
    torch.manual_seed(0)
    layer = StableSSM(2, 2, reparameterization=get_reparameterization(name, time=time)).double()
    x = torch.randn(2, 40, 2, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor]) -> Tensor:
        return functional_call(layer, parameters, (x,)).sin().sum()

    start = {name: 0.98 * p.detach() for name, p in layer.named_parameters()}  # 0.98, because the bound of clip is a kink
    return layer, loss, start


@pytest.mark.parametrize(("name", "time"), PAIRS)
def test_every_way_to_compute_a_layers_hessian_matches_finite_differences(name: str, time: str) -> None:
    _, loss, start = layer_and_loss(name, time)

    def of_w(w: Tensor) -> Tensor:
        return loss(start | {"w": w})

    w, step = start["w"], 1e-5
    wanted = torch.stack([(grad(of_w)(w + step * e) - grad(of_w)(w - step * e)) / (2 * step) for e in torch.eye(2).double()])
    eager = torch.autograd.functional.hessian
    taken = (
        eager(of_w, w),
        eager(of_w, w, vectorize=True),
        hessian(of_w)(w),
        jacrev(jacrev(of_w))(w),
        jacrev(jacfwd(of_w))(w),
    )
    for one in taken:
        torch.testing.assert_close(one, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("name", "time"), [("best", "discrete"), ("exp", "continuous"), ("direct", "discrete")])
def test_gradients_and_tangents_under_torch_func_match_autograd(name: str, time: str) -> None:
    _, loss, start = layer_and_loss(name, time)
    leaves = {key: p.clone().requires_grad_() for key, p in start.items()}
    eager = dict(zip(leaves, torch.autograd.grad(loss(leaves), list(leaves.values())), strict=True))
    functional = grad(loss)(start)
    tangents = {key: torch.randn_like(p) for key, p in start.items()}
    _, slope = jvp(loss, (start,), (tangents,))
    for key, gradient in eager.items():
        torch.testing.assert_close(functional[key], gradient, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(slope, sum((eager[key] * tangents[key]).sum() for key in eager))
    with forward_ad.dual_level():
        dual = {key: forward_ad.make_dual(p, tangents[key]) for key, p in start.items()}
        torch.testing.assert_close(forward_ad.unpack_dual(loss(dual)).tangent, slope)


@pytest.mark.parametrize(("name", "time"), [("best", "discrete"), ("exp", "continuous")])
def test_vmap_over_stacked_layers_matches_a_loop_over_layers(name: str, time: str) -> None:
    layers = [StableSSM(3, 4, reparameterization=get_reparameterization(name, time=time)).double() for _ in range(3)]
    for i, layer in enumerate(layers):
        with torch.no_grad():
            layer.w.add_(0.1 * i)
    parameters, buffers = stack_module_state(layers)
    x = torch.randn(3, 2, 40, 3, dtype=torch.float64)

    def loss(p: dict[str, Tensor], b: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(layers[0], (p, b), (x,)).square().sum()

    values, gradients = vmap(loss)(parameters, buffers, x), vmap(grad(loss))(parameters, buffers, x)
    for i, layer in enumerate(layers):
        alone = layer(x[i]).square().sum()
        torch.testing.assert_close(values[i], alone)
        for key, gradient in zip(gradients, torch.autograd.grad(alone, list(layer.parameters())), strict=True):
            torch.testing.assert_close(gradients[key][i], gradient)


def test_nested_forward_mode_raises_an_error_instead_of_returning_zero() -> None:
    _, loss, start = layer_and_loss("exp", "discrete")
    with pytest.raises(RuntimeError, match="within forward mode is not supported"):
        jacfwd(jacfwd(lambda w: loss(start | {"w": w})))(start["w"])


def test_a_layer_keeps_no_state_of_a_torch_func_transform() -> None:
    layer, loss, start = layer_and_loss("best", "discrete")
    grad(loss)(start)
    assert layer.last_state is None
