"""Products of real sequences with complex weights. The weights are real parameters whose last axis is (real, imaginary)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def complex_product(x: Tensor, B: Tensor) -> Tensor:
    """B x: x real (..., d_model), B (d_state, d_model, 2) -> complex (..., d_state), in B's precision even under autocast.

    It is computed as one real product, with both parts of each row adjacent in memory, which is half the work of a complex
    product.
    """
    d_state, d_model, _ = B.shape
    parts = functional.linear(x, B.transpose(1, 2).reshape(2 * d_state, d_model)).to(B.dtype)
    return torch.view_as_complex(parts.view(*x.shape[:-1], d_state, 2))


def real_part_of_product(C: Tensor, h: Tensor) -> Tensor:
    """Re(C h): C (d_model, d_state, 2), h complex (..., d_state) -> real (..., d_model)."""
    conjugate = torch.stack([C[..., 0], -C[..., 1]], dim=-1)
    return functional.linear(torch.view_as_real(h).flatten(-2), conjugate.flatten(1))
