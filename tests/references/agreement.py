"""Compares one of our layers with a public layer that has the same weights, in float32."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.layers.pair import Pair

LENGTH = 131  # not a multiple of any chunk length


def assert_same(pair: Pair, d_model: int, *, tolerance: float = 1e-5, length: int = LENGTH) -> None:
    """Compare output and gradients of the input and all weights, each within `tolerance` times its largest number."""
    x = torch.randn(2, length, d_model, requires_grad=True)
    grad = torch.randn(2, length, d_model)
    last = length - pair.lag
    mine, public = pair.ours(x)[:, :last], pair.call(x)[:, pair.lag :]
    near(mine, public, "output", tolerance)
    weights = dict(pair.ours.named_parameters())
    of_mine = torch.autograd.grad(mine, [x, *weights.values()], grad[:, :last])
    of_public, *of_theirs = torch.autograd.grad(public, [x, *pair.given], grad[:, :last])
    pulled_back = torch.autograd.grad(list(pair.given.values()), list(weights.values()), of_theirs)
    for name, a, b in zip(["input", *weights], of_mine, [of_public, *pulled_back], strict=True):
        near(a, b, f"gradient of {name}", tolerance)


def near(mine: Tensor, public: Tensor, what: str, tolerance: float) -> None:
    error = float((mine - public).abs().max() / public.abs().max())
    assert error < tolerance, f"{what}: error is {error:.1e} of the largest absolute value"
