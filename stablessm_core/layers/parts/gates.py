"""The recorded statistics of gates, step sizes and eigenvalues that depend on the input.

The statistics of a gate take only three reductions, so recording costs a layer almost nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def gate_statistics(s: Tensor) -> Tensor:
    """The smallest, mean and largest s over batch and time: (3, values), float32 or wider, detached.

    s: (batch, length, values). If there are several axes after the length, they are flattened. If eigenvalues exp(-s r) share the
    gate s, each eigenvalue is monotone in s. So the extremes of s give the extremes of each eigenvalue, and the mean of s gives
    the mean of the eigenvalue's logarithm.
    """
    s = s.detach().flatten(0, 1).flatten(1)
    s = s.float() if s.dtype in (torch.float16, torch.bfloat16) else s
    return torch.stack([s.amin(0), s.mean(0), s.amax(0)])


@torch.no_grad()
def decay_of(distance: Tensor) -> Tensor:
    """-ln|lambda_bar| from the distance 1 - |lambda_bar|, without cancellation near 1; finite even for lambda_bar = 0."""
    distance = distance.detach()
    return -torch.log1p(-distance.clamp(max=1 - torch.finfo(distance.dtype).eps / 2))
