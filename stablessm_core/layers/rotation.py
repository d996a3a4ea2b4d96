"""Rotation of queries and keys by their position, so that a product of the two depends on the distance between their steps."""

from __future__ import annotations

import torch
from torch import Tensor

LONGEST = 10_000.0  # the slowest pair turns by 1 in nearly so many steps


def rotated(x: Tensor, position: Tensor) -> Tensor:
    """x (..., heads, width) with channels i and width/2 + i turned by position * LONGEST^(-2i/width).

    position: as x without its last two axes, or broadcast to it. The last channel of an odd width stays. Angles are float64: of a
    late step only the part within a turn counts. Source: RoFormer (arXiv 2104.09864), section 3.2.2.
    """
    half = x.shape[-1] // 2
    frequency = LONGEST ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = (position[..., None] * frequency).unsqueeze(-2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b, odd = torch.split(x, [half, half, x.shape[-1] - 2 * half], -1)
    turned = [a * cos - b * sin, a * sin + b * cos]
    return torch.cat([*turned, odd] if odd.shape[-1] else turned, -1)
