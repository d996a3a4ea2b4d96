"""The halves of a residual block and the norm, each forward and backward in one call of the compiled kernels.

    state_space   y = x + C act(h) + D z,   h_t = lambda_bar h_{t-1} + gain B z_t,   z = norm(x)
    gated_mlp     y = x + W_d (silu(g) u),  (g, u) = (W_g, W_u) z,                   z = norm(x)
    norm          z = weight (x - mean) / sqrt(variance + eps) + bias

A piece of rows goes through all of it while it lies in the caches, with products of our own, and a small model is no longer a
thousand operations that each do next to nothing. float32, contiguous, widths that `fits` allows. The last of what a forward
function returns is for its gradient: norms (rows, 2), means and reciprocal deviations; states h and act(h) (batch, length,
d_state); gu (rows, 2 d_hidden), silu(g) and u, and sigmoid(g)
(rows, d_hidden).
"""

from __future__ import annotations

import functools
import struct

import torch
from torch import Tensor

from stablessm_core.compiled import library
from stablessm_core.scan.compiled import ACTIVATIONS

WIDTHS = 16  # numbers of a vector: every width is a multiple
WIDEST = 512
MOST_WEIGHTS = (
    1 << 17
)  # of a matrix: from there on it leaves the caches of a core, and libraries that cut it into blocks are faster

Norm = tuple[Tensor, Tensor, float]  # weight, bias, eps
Kept = list[Tensor]


def fits(d_model: int, inner: int, matrix: int) -> bool:
    """Do the kernels take these two widths, and is the larger matrix, of so many numbers, small enough?"""
    return not (d_model % WIDTHS or inner % WIDTHS) and max(d_model, inner) <= WIDEST and matrix <= MOST_WEIGHTS


def state_space(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, gain: Tensor | None, C: Tensor, D: Tensor, activation: str
) -> tuple[Tensor, Tensor, Kept]:
    """y, the last states and what the gradient needs. x (batch, length, d_model), B (d_state, d_model), gain (d_state,)."""
    batch, length, _ = x.shape
    d_state = lambda_bar.shape[0]
    y, last, norms = torch.empty_like(x), x.new_empty(batch, d_state), x.new_empty(batch * length, 2)
    h, active = x.new_empty(batch, length, d_state), x.new_empty(batch, length, d_state)
    given = _state_space(x, norm, lambda_bar, B, gain, C, D, activation)
    library.call("stablessm_state_space", (*given, *_addresses(y, last, norms, h, active)), _work(x, h))
    return y, last, [norms, h, active]


def state_space_gradient(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, gain: Tensor | None, C: Tensor, D: Tensor, activation: str,
    kept: Kept, dy: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Of x, the norm's weight and bias, lambda_bar, B, C and D."""
    norms, h, active = kept
    found = tuple(torch.empty_like(t) for t in (x, norm[0], norm[1], lambda_bar, B, C, D))
    given = _state_space(x, norm, lambda_bar, B, gain, C, D, activation)
    library.call("stablessm_state_space_gradient", (*given, *_addresses(norms, h, active, dy, *found)), _work(x, h))
    return found


def _state_space(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, gain: Tensor | None, C: Tensor, D: Tensor, activation: str
) -> tuple[int, ...]:
    places = _addresses(x, norm[0], norm[1], lambda_bar, B)
    return *x.shape, lambda_bar.shape[0], ACTIVATIONS[activation], _bits(norm[2]), *places, *_addresses(gain, C, D)


def gated_mlp(x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Kept]:
    """y and what the gradient needs. x (..., d_model), gate and up (d_hidden, d_model), down (d_model, d_hidden)."""
    rows, d_hidden = x.numel() // x.shape[-1], gate.shape[0]
    y, norms = torch.empty_like(x), x.new_empty(rows, 2)
    gu, sigmoid = x.new_empty(rows, 2 * d_hidden), x.new_empty(rows, d_hidden)
    given = rows, x.shape[-1], d_hidden, _bits(norm[2]), *_addresses(x, norm[0], norm[1], gate, up, down)
    library.call("stablessm_gated_mlp", (*given, *_addresses(y, norms, gu, sigmoid)), _work(x, gu))
    return y, [norms, gu, sigmoid]


def gated_mlp_gradient(
    x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor, kept: Kept, dy: Tensor
) -> tuple[Tensor, ...]:
    """Of x, the norm's weight and bias, gate, up and down."""
    norms, gu, sigmoid = kept
    found = tuple(torch.empty_like(t) for t in (x, norm[0], norm[1], gate, up, down))
    given = x.numel() // x.shape[-1], x.shape[-1], gate.shape[0], _bits(norm[2]), *_addresses(x, norm[0], norm[1], gate, up, down)
    library.call("stablessm_gated_mlp_gradient", (*given, *_addresses(norms, gu, sigmoid, dy, *found)), _work(x, gu))
    return found


def normalised(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """z and norms. x (..., d_model)."""
    z, norms = torch.empty_like(x), x.new_empty(x.numel() // x.shape[-1], 2)
    given = norms.shape[0], x.shape[-1], _bits(norm[2]), *_addresses(x, norm[0], norm[1], z, norms)
    library.call("stablessm_norm", given, x.numel())
    return z, norms


def normalised_gradient(x: Tensor, norm: Norm, norms: Tensor, dz: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of x, weight and bias."""
    dx, d_weight, d_bias = torch.empty_like(x), torch.empty_like(norm[0]), torch.empty_like(norm[1])
    given = norms.shape[0], x.shape[-1], _bits(norm[2]), *_addresses(x, norm[0], norms, dz, dx, d_weight, d_bias)
    library.call("stablessm_norm_gradient", given, x.numel())
    return dx, d_weight, d_bias


def _addresses(*tensors: Tensor | None) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


def _work(*tensors: Tensor) -> int:
    """Numbers that pass, by which threads are counted: each is multiplied more than ten times."""
    return 4 * sum(t.numel() for t in tensors)


@functools.cache
def _bits(x: float) -> int:
    """A float64 as the integer of the same 64 bits."""
    (found,) = struct.unpack("<q", struct.pack("<d", x))
    return int(found)
