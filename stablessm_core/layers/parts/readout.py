"""The readouts that mix the channels after a diagonal recurrence: the gated linear units in the S4 family's blocks."""

from __future__ import annotations

import math
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.kernels import library
from stablessm_core.network import blocks
from stablessm_core.scan.autograd import is_unobserved

Initial = Literal["lecun", "uniform"]


class GatedReadout(nn.Module):
    """z = (W_1 g + b_1) * sigmoid(W_2 g + b_2) with g = gelu(y). Input and output are (..., d_model).

    Parameters: weight (2 d_model, d_model), the rows of W_1, then the rows of W_2; bias (2 d_model,). initial: the initial
    values. "lecun", as in flax's Dense: normal weights of variance 1/d_model, truncated at two standard deviations, and zero
    biases. "uniform", as in PyTorch's Linear: weights and biases are uniform in [-1/sqrt(d_model), 1/sqrt(d_model)].
    backend: the backend of scans; compiled kernels are used only if it is "cpu".
    """

    def __init__(self, d_model: int, initial: Initial, backend: str = "auto") -> None:
        super().__init__()
        self.backend = backend
        self.weight = nn.Parameter(torch.empty(2 * d_model, d_model))
        self.bias = nn.Parameter(torch.zeros(2 * d_model))
        if initial == "lecun":
            lecun_normal_(self.weight, d_model)
        else:
            bound = 1 / math.sqrt(d_model)
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, y: Tensor) -> Tensor:
        return gated(functional.linear(functional.gelu(y), self.weight, self.bias), self.backend)


class HalfGatedReadout(nn.Module):
    """z = a * sigmoid(W g + b) with g = gelu(y), where a is g or y. Input and output are (..., d_model).

    Parameters: weight (d_model, d_model), bias (d_model,), with the initial values of flax's Dense.
    """

    def __init__(self, d_model: int, *, gated: Literal["gelu", "linear"]) -> None:
        super().__init__()
        self.gated = gated
        self.weight = nn.Parameter(lecun_normal_(torch.empty(d_model, d_model), d_model))
        self.bias = nn.Parameter(torch.zeros(d_model))

    def forward(self, y: Tensor) -> Tensor:
        g = functional.gelu(y)
        return (g if self.gated == "gelu" else y) * torch.sigmoid(functional.linear(g, self.weight, self.bias))


def gated(halves: Tensor, backend: str = "auto") -> Tensor:
    """u * sigmoid(g) for halves = (u, g) (..., 2 channels): `torch.nn.functional.glu`, in C if the backend of scans is "cpu"."""
    if torch.compiler.is_compiling() or not blocks.can_run(backend, halves):
        return functional.glu(halves, dim=-1)
    z: Tensor = _Gated.apply(halves)  # type: ignore[no-untyped-call]
    return z


class _Gated(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, halves: Tensor) -> Tensor:
        halves = halves.contiguous()
        ctx.save_for_backward(halves)
        channels = halves.shape[-1] // 2
        z = halves.new_empty(*halves.shape[:-1], channels)
        numbers = z.numel() // channels, channels, halves.data_ptr(), z.data_ptr()
        library.call("stablessm_glu", numbers, z.numel())
        return z

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (halves,) = ctx.saved_tensors
        if torch.is_grad_enabled() or not is_unobserved(halves, grad):
            by_torch: Tensor = torch.ops.aten.glu_backward(grad, halves, -1)
            return by_torch
        grad, d_halves = grad.contiguous(), torch.empty_like(halves)
        channels = halves.shape[-1] // 2
        numbers = grad.numel() // channels, channels, halves.data_ptr(), grad.data_ptr(), d_halves.data_ptr()
        library.call("stablessm_glu_gradient", numbers, d_halves.numel())
        return d_halves


def lecun_normal_(weight: Tensor, fan_in: int) -> Tensor:
    """Fill `weight` with numbers of variance 1/fan_in from a normal distribution truncated at two standard deviations."""
    drawn = 1 / math.sqrt(fan_in) / 0.87962566  # 0.8796...: the standard deviation of a standard normal truncated at +-2
    return nn.init.trunc_normal_(weight, std=drawn, a=-2 * drawn, b=2 * drawn)
