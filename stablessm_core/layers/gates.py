"""What is recorded of a gate: three reductions, so that a layer pays next to nothing for being watched."""

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
