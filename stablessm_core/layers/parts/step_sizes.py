"""Initial step sizes dt, for layers that train ln dt and for layers that compute dt from the input."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST, LARGEST = 1e-3, 1e-1


def log_uniform(low: float, high: float, *shape: int) -> Tensor:
    """ln dt, a float32 tensor of the given shape, with dt log-uniform in [low, high]."""
    start, end = math.log(low), math.log(high)
    return start + (end - start) * torch.rand(*shape)


def softplus_bias(count: int) -> Tensor:
    """The bias b of dt = softplus(... + b), (count,) float32, such that softplus(b) is log-uniform in [SMALLEST, LARGEST].

    Mamba, arXiv 2312.00752, section 3.6.
    """
    low, high = math.log(SMALLEST), math.log(LARGEST)
    dt = torch.exp(low + (high - low) * torch.rand(count, dtype=torch.float64))
    return (dt + torch.log(-torch.expm1(-dt))).float()
