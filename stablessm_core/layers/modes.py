"""Convolution kernels that are sums of modes, K_l = Re sum_n c_n lambda_bar_n^l, and the states that such a convolution ends in.

A power lambda_bar^(Qi + j) is a product of two, so a kernel of any length is a matrix product of two tables of about sqrt(length)
powers each: neither the powers of all lags nor the states of all steps are ever held.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stablessm_core.differentiation import transformed


def mode_kernel(lambda_bar: Tensor, coefficients: Tensor, length: int) -> Tensor:
    """K_l = Re sum_n c_n lambda_bar_n^l for l = 0..length - 1, (channels, length) real, in the precision of `coefficients`.

    lambda_bar: complex (channels, modes), complex128 for the last digits of the large powers; coefficients: c, complex, the same
    shape. Differentiable any number of times.
    """
    near, far = _tables(lambda_bar, coefficients.dtype, length)
    left = torch.view_as_real(coefficients.unsqueeze(1) * far).flatten(2)
    right = torch.view_as_real(near.conj().resolve_conj()).flatten(2)  # Re(a b) is the real product of a and conj(b)
    with torch.autocast(left.device.type, enabled=False):
        return torch.bmm(left, right.transpose(1, 2)).flatten(1)[:, :length]


class FinalState:
    """The state in which a layer's last forward ended; after a convolution, which has none, computed when it is asked for."""

    def __init__(self) -> None:
        self._size: Tensor | None = None
        self._later: tuple[Callable[..., Tensor], tuple[Tensor, ...]] | None = None

    def set(self, size: Tensor) -> None:
        """size: |h|, (batch, eigenvalues)."""
        self._size, self._later = None if transformed() else size.detach(), None

    def follows_from(self, compute: Callable[..., Tensor], *given: Tensor) -> None:
        """|h| = compute(*given). No parameter may be given: an update would change it before the state is asked for."""
        self._size, self._later = None, None if transformed() else (compute, tuple(x.detach() for x in given))

    @property
    def size(self) -> Tensor | None:
        """|h|, (batch, eigenvalues), without gradient; None before the first forward."""
        if self._later is not None:
            compute, given = self._later
            with torch.no_grad():
                self.set(compute(*given))
        return self._size


@torch.no_grad()
def final_states(lambda_bar: Tensor, x: Tensor) -> Tensor:
    """sum_t lambda_bar_n^(length - 1 - t) x_t, complex (batch, channels, modes): h after the last step of
    h_t = lambda_bar h_{t-1} + x_t. x: real (batch, length, channels). Carries no gradient.
    """
    batch, length, channels = x.shape
    near, far = _tables(lambda_bar, x.dtype.to_complex(), length, batch)
    span, pieces = near.shape[1], far.shape[1]
    rows = x.new_zeros(channels, batch, span * pieces)
    rows[..., span * pieces - length :] = x.permute(2, 0, 1)
    with torch.autocast(x.device.type, enabled=False):
        ends = torch.bmm(rows.view(channels, batch * pieces, span), torch.view_as_real(near.flip(1)).flatten(2))
    ends = torch.view_as_complex(ends.view(channels, batch, pieces, -1, 2))
    return (ends * far.flip(1).unsqueeze(1)).sum(2).transpose(0, 1)


def _tables(lambda_bar: Tensor, dtype: torch.dtype, length: int, rows: int = 1) -> tuple[Tensor, Tensor]:
    """lambda_bar^j for j below a power of two Q, and lambda_bar^(Qi) until Q i covers `length`; (channels, count, modes) each.

    Q is about as large as `rows` times the count of the others, for as often the second table is gone through.
    """
    doublings = min((max(length * rows - 1, 1).bit_length() + 1) // 2, (length - 1).bit_length())
    step = lambda_bar
    for _ in range(doublings):
        step = step * step
    span = 1 << doublings
    near = _Powers.apply(lambda_bar.to(dtype), span)  # type: ignore[no-untyped-call]
    far = _Powers.apply(step.to(dtype), -(-length // span))  # type: ignore[no-untyped-call]
    return near, far


class _Powers(torch.autograd.Function):
    """base^k for k = 0..count - 1: (channels, modes) -> (channels, count, modes), by doubling."""

    @staticmethod
    def forward(ctx: Any, base: Tensor, count: int) -> Tensor:
        powers = base.new_empty(base.shape[0], count, base.shape[1])
        powers[:, 0] = 1
        factor, have = base.unsqueeze(1), 1
        while have < count:
            more = min(have, count - have)
            torch.mul(powers[:, :more], factor, out=powers[:, have : have + more])
            factor, have = factor * factor, have + more
        ctx.save_for_backward(powers)
        return powers

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (powers,) = ctx.saved_tensors
        k = torch.arange(1, powers.shape[1], dtype=powers.dtype.to_real(), device=powers.device)
        return (powers[:, :-1].conj() * (grad[:, 1:] * k[:, None])).sum(1), None


def wide(x: Tensor) -> Tensor:
    """x in float64, where the device has it: what large powers are taken of is exact beyond float32's digits."""
    return x if x.device.type == "mps" else x.double()
