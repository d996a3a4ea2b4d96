"""Step sizes that are computed from the input, dt = softplus(... + b): where they start."""

from __future__ import annotations

import math

import torch
from torch import Tensor

SMALLEST, LARGEST = 1e-3, 1e-1


def softplus_bias(count: int) -> Tensor:
    """b, (count,) float32, with softplus(b) log-uniform in [SMALLEST, LARGEST] (Mamba, arXiv 2312.00752, section 3.6)."""
    low, high = math.log(SMALLEST), math.log(LARGEST)
    dt = torch.exp(low + (high - low) * torch.rand(count, dtype=torch.float64))
    return (dt + torch.log(-torch.expm1(-dt))).float()
