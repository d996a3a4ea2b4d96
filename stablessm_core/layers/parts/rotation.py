"""Rotates queries and keys by position, so that the product of a query and a key depends on the distance between them."""

from __future__ import annotations

import torch
from torch import Tensor

LONGEST = 10_000.0  # number of steps in which the slowest pair of channels turns by about one radian


def rotated(x: Tensor, position: Tensor) -> Tensor:
    """x (..., heads, width) with each pair of channels (i, width/2 + i) rotated by the angle position * LONGEST^(-2i/width).

    position: has the shape of x without the last two axes, or a shape that broadcasts to that shape. The last channel of an odd
    width is unchanged. Angles are float64, because they are large at late steps and only the remainder modulo 2 pi affects the
    result. Source: RoFormer (arXiv 2104.09864), section 3.2.2.
    """
    half = x.shape[-1] // 2
    frequency = LONGEST ** (-torch.arange(half, dtype=torch.float64, device=x.device) / half)
    angle = (position[..., None] * frequency).unsqueeze(-2)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b, odd = torch.split(x, [half, half, x.shape[-1] - 2 * half], -1)
    turned = [a * cos - b * sin, a * sin + b * cos]
    return torch.cat([*turned, odd] if odd.shape[-1] else turned, -1)
