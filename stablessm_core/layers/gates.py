"""What is recorded of gates, of step sizes and of eigenvalues that the input decides.

Three reductions a gate, so that a layer pays next to nothing for being watched.
"""

from __future__ import annotations

import torch
from torch import Tensor


@torch.no_grad()
def gate_statistics(s: Tensor) -> Tensor:
    """Smallest, mean and largest of s over batch and time, (3, values) in float32 at least, detached.

    s: (batch, length, values), or with further axes in place of the last one, which are flattened. In a group of eigenvalues that
    share a gate exp(-s r) is monotone in s: the extremes of s are those of every eigenvalue, and its mean is the mean of their
    logarithms.
    """
    s = s.detach().flatten(0, 1).flatten(1)
    s = s.float() if s.dtype in (torch.float16, torch.bfloat16) else s
    return torch.stack([s.amin(0), s.mean(0), s.amax(0)])


@torch.no_grad()
def decay_of(distance: Tensor) -> Tensor:
    """-ln|lambda_bar| from 1 - |lambda_bar|, without cancellation near 1; of an eigenvalue of 0 the largest finite one."""
    distance = distance.detach()
    return -torch.log1p(-distance.clamp(max=1 - torch.finfo(distance.dtype).eps / 2))
