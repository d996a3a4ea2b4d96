"""The gate of the readouts in C: the values and derivatives of PyTorch's gated linear unit."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from stablessm_core.layers.parts.readout import gated
from stablessm_core.network import blocks
from stablessm_core.scan import why_not_compiled

OBSTACLE = why_not_compiled(torch.device("cpu"))
pytestmark = pytest.mark.skipif(OBSTACLE is not None, reason=str(OBSTACLE))


@pytest.mark.parametrize("channels", [1, 8, 16, 17, 40])
def test_values_and_gradients_are_those_of_the_gated_linear_unit(channels: int) -> None:
    halves = (torch.randn(3, 21, 2 * channels) * 4).requires_grad_()
    upstream = torch.randn(3, 21, channels)
    assert blocks.can_run("auto", halves)
    results = []
    for function, x in ((gated, halves), (functional.glu, halves.detach().double().requires_grad_())):
        z = function(x)
        results.append((z, *torch.autograd.grad(z, x, upstream.to(z.dtype))))
    for found, right in zip(*results, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), right, rtol=1e-6, atol=5e-6)  # 1 - sigmoid(g) rounds, as in PyTorch


def test_numbers_that_are_not_finite_give_those_of_pytorch() -> None:
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, 1.0, -200.0, 3e38])
    u, g = (t.flatten() for t in torch.meshgrid(special, special, indexing="ij"))
    halves = torch.cat([u, g]).requires_grad_()
    results = []
    for function in (gated, functional.glu):
        z = function(halves)
        results.append((z, *torch.autograd.grad(z, halves, torch.ones_like(z))))
    for found, right in zip(*results, strict=True):
        torch.testing.assert_close(found, right, rtol=1e-6, atol=0, equal_nan=True)


def test_second_derivatives_are_those_of_the_gated_linear_unit() -> None:
    halves = torch.randn(5, 6, requires_grad=True)
    results = []
    for function in (gated, functional.glu):
        (first,) = torch.autograd.grad(function(halves).square().sum(), halves, create_graph=True)
        results.append(torch.autograd.grad(first.square().sum(), halves)[0])
    torch.testing.assert_close(*results)
