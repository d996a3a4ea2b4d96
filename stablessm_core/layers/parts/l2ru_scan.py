"""h_t = A h_{t-1} + b_t for a dense A, by doubling: after pass k, every state contains the inputs of the last 2^k steps."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm_core.numerics.differentiation import transformed


def matrix_scan(A: Tensor, b: Tensor) -> Tensor:
    """All states from h_0 = 0: A (n, n), b (batch, length, n) -> (batch, length, n).

    The scan takes ceil(log2 length) products of all states with a power of A. If A is a contraction, rounding errors do not
    grow. Derivatives of any order are supported.
    """
    h: Tensor = _doubled(A, b) if transformed() else _MatrixScan.apply(A, b)  # type: ignore[no-untyped-call]
    return h


def _doubled(A: Tensor, b: Tensor) -> Tensor:
    h, power, span = b, A.T, 1
    while span < b.shape[1]:
        h = torch.cat([h[:, :span], h[:, span:] + h[:, :-span] @ power], 1)
        power, span = power @ power, 2 * span
    return h


class _MatrixScan(torch.autograd.Function):
    """`_doubled` in place. The transforms of torch.func need `_doubled` itself."""

    @staticmethod
    def forward(ctx: Any, A: Tensor, b: Tensor) -> Tensor:
        h, power, span = b.clone(), A.T, 1
        while span < b.shape[1]:
            h[:, span:] += h[:, :-span] @ power
            power, span = power @ power, 2 * span
        ctx.save_for_backward(A, h)
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        A, h = ctx.saved_tensors
        adjoint = matrix_scan(A.T, grad.flip(1)).flip(1)  # g_t = A^T g_{t+1} + grad_t
        return torch.einsum("btn,btm->nm", adjoint[:, 1:], h[:, :-1]), adjoint
