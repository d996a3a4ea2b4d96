"""What the time mixing of RWKV-4 and RWKV-6 shares: the token shift, and initial values by depth and channel.

All of it from BlinkDL/RWKV-LM, RWKV-v4/src/model.py and RWKV-v5/src/model.py. Depth rho: 0 in the first layer, 1 in the last.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def token_shift(x: Tensor) -> Tensor:
    """x_{t-1} at every t, 0 at the first: (batch, length, d_model) to the same."""
    return functional.pad(x, (0, 0, 1, -1))


def depth(index: int, n_layers: int) -> float:
    """rho = index / (n_layers - 1); 0 for a single layer, where the published formula divides by zero."""
    return index / max(n_layers - 1, 1)


def place(width: int) -> Tensor:
    """n / (width - 1) of channel n, (width,) float64: 0 to 1; 0 for a single channel."""
    return torch.arange(width, dtype=torch.float64) / max(width - 1, 1)


def log_rates(first: float, last: float, width: int, rho: float) -> Tensor:
    """ln of the initial decay rates, (width,) float64: first + (last - first) (n / (width - 1))^(0.7 + 1.3 rho)."""
    return first + (last - first) * place(width) ** (0.7 + 1.3 * rho)


def current_share(width: int, index: int, n_layers: int, power: float = 1.0) -> Tensor:
    """Initial weight of x_t against x_{t-1} in a mixed input, (width,) float64: (n / width)^(power (1 - index / n_layers))."""
    return (torch.arange(width, dtype=torch.float64) / width) ** (power * (1 - index / n_layers))


def zigzag(width: int) -> Tensor:
    """0, 1, -1, 0, 1, -1, ... (width,) float64: neighbouring channels start with different bonuses."""
    return (torch.arange(width, dtype=torch.float64) + 1) % 3 - 1
