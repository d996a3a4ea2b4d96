"""Convolution kernels that are sums of modes, K_l = Re sum_n c_n lambda_bar_n^l, and the final states of these convolutions.

A power lambda_bar^(Qi + j) is a product of lambda_bar^(Qi) and lambda_bar^j. So a kernel is a matrix product of two tables of
about sqrt(length) powers each. Neither the powers of all lags nor the states of all steps are stored.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from stablessm_core.numerics.differentiation import transformed


def mode_kernel(lambda_bar: Tensor, coefficients: Tensor, length: int) -> Tensor:
    """K_l = Re sum_n c_n lambda_bar_n^l for l = 0..length - 1, (channels, length) real, in the precision of `coefficients`.

    lambda_bar: complex (channels, modes); complex128 keeps the large powers accurate. coefficients: c, complex, of the same
    shape. Derivatives of any order are supported.
    """
    near, far = _tables(lambda_bar, coefficients.dtype, length)
    left = torch.view_as_real(coefficients.unsqueeze(1) * far).flatten(2)
    right = torch.view_as_real(near.conj().resolve_conj()).flatten(2)  # Re(a b) is the real product of a and conj(b)
    with torch.autocast(left.device.type, enabled=False):
        return torch.bmm(left, right.transpose(1, 2)).flatten(1)[:, :length]


@torch.no_grad()
def final_states(lambda_bar: Tensor, x: Tensor) -> Tensor:
    """h after the last step of h_t = lambda_bar h_{t-1} + x_t, that is sum_t lambda_bar_n^(length - 1 - t) x_t.

    Complex (batch, channels, modes), without a gradient. x: real (batch, length, channels).
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
    """lambda_bar^j for j below a power of two Q, and lambda_bar^(Qi) until Q i covers `length`; each (channels, count, modes).

    The caller reads the second table `rows` times, so Q is about `rows` times the length of that table.
    """
    doublings = min((max(length * rows - 1, 1).bit_length() + 1) // 2, (length - 1).bit_length())
    step = lambda_bar
    for _ in range(doublings):
        step = step * step
    span = 1 << doublings
    powers: Any = _powers if transformed() else _Powers.apply
    return powers(lambda_bar.to(dtype), span), powers(step.to(dtype), -(-length // span))


def _powers(base: Tensor, count: int) -> Tensor:
    """base^k for k = 0..count - 1: (channels, modes) -> (channels, count, modes), by doubling."""
    factor = base.unsqueeze(1)
    powers = torch.ones_like(factor)
    while (have := powers.shape[1]) < count:
        powers = torch.cat([powers, powers[:, : count - have] * factor], 1)
        factor = factor * factor
    return powers


class _Powers(torch.autograd.Function):
    """`_powers` with a single pass in each direction. The transforms of torch.func need `_powers` itself."""

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
    """x in float64, if the device supports float64, because large powers need more digits than float32 has."""
    return x if x.device.type == "mps" else x.double()


def wide_complex(x: Tensor) -> Tensor:
    """Complex x in complex128, if the device supports it."""
    return x if x.device.type == "mps" else x.to(torch.complex128)


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Complex x in another complex dtype, with real and imaginary parts limited to the largest finite numbers of that dtype."""
    limit = torch.finfo(dtype).max
    return torch.view_as_complex(torch.view_as_real(x).clamp(-limit, limit)).to(dtype)
