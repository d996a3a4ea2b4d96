"""The readouts that mix the channels after a diagonal recurrence: the gated linear units in the S4 family's blocks."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

Initial = Literal["lecun", "uniform"]


class GatedReadout(nn.Module):
    """z = (W_1 g + b_1) * sigmoid(W_2 g + b_2) with g = gelu(y). Input and output are (..., d_model).

    Parameters: weight (2 d_model, d_model), the rows of W_1, then the rows of W_2; bias (2 d_model,). initial: the initial
    values. "lecun", as in flax's Dense: normal weights of variance 1/d_model, truncated at two standard deviations, and zero
    biases. "uniform", as in PyTorch's Linear: weights and biases are uniform in [-1/sqrt(d_model), 1/sqrt(d_model)].
    """

    def __init__(self, d_model: int, initial: Initial) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * d_model, d_model))
        self.bias = nn.Parameter(torch.zeros(2 * d_model))
        if initial == "lecun":
            lecun_normal_(self.weight, d_model)
        else:
            bound = 1 / math.sqrt(d_model)
            nn.init.uniform_(self.weight, -bound, bound)
            nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, y: Tensor) -> Tensor:
        return functional.glu(functional.linear(functional.gelu(y), self.weight, self.bias), dim=-1)


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


def lecun_normal_(weight: Tensor, fan_in: int) -> Tensor:
    """Fill `weight` with numbers of variance 1/fan_in from a normal distribution truncated at two standard deviations."""
    drawn = 1 / math.sqrt(fan_in) / 0.87962566  # 0.8796...: the standard deviation of a standard normal truncated at +-2
    return nn.init.trunc_normal_(weight, std=drawn, a=-2 * drawn, b=2 * drawn)
