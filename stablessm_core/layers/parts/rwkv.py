"""Functions that RWKV-4 and RWKV-6 share: the token shift, and initial values that depend on depth and channel.

The formulas are from BlinkDL/RWKV-LM, RWKV-v4/src/model.py and RWKV-v5/src/model.py. The depth rho is 0 in the first layer and
1 in the last layer.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def token_shift(x: Tensor) -> Tensor:
    """x_{t-1} at every step t, and 0 at the first step. Input and output are (batch, length, d_model)."""
    return functional.pad(x, (0, 0, 1, -1))


def depth(index: int, n_layers: int) -> float:
    """rho = index / (n_layers - 1); 0 for a single layer, where the published formula divides by zero."""
    return index / max(n_layers - 1, 1)


def fraction(width: int) -> Tensor:
    """n / (width - 1) for channel n, from 0 to 1, (width,) float64; 0 for a single channel."""
    return torch.arange(width, dtype=torch.float64) / max(width - 1, 1)


def log_rates(first: float, last: float, width: int, rho: float) -> Tensor:
    """ln of the initial decay rates, (width,) float64: first + (last - first) (n / (width - 1))^(0.7 + 1.3 rho)."""
    return first + (last - first) * fraction(width) ** (0.7 + 1.3 * rho)


def current_share(width: int, index: int, n_layers: int, power: float = 1.0) -> Tensor:
    """The initial share of x_t in a mix with x_{t-1}, (width,) float64: (n / width)^(power (1 - index / n_layers))."""
    return (torch.arange(width, dtype=torch.float64) / width) ** (power * (1 - index / n_layers))


def zigzag(width: int) -> Tensor:
    """0, 1, -1, 0, 1, -1, ... (width,) float64: values that give neighbouring channels different initial bonuses."""
    return (torch.arange(width, dtype=torch.float64) + 1) % 3 - 1
