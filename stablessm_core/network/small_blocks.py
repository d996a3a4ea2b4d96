"""Small residual blocks. Each half of a block, and the norm, takes one call of a C kernel forward and one call backward.

    state_space   y = x + C act(h) + D z,   h_t = lambda_bar h_{t-1} + gain B z_t,   z = norm(x)
    gated_mlp     y = x + W_d (silu(g) u),  (g, u) = (W_g, W_u) z,                   z = norm(x)
    norm          z = weight (x - mean) / sqrt(variance + eps) + bias

A kernel applies the whole formula to a chunk of rows while the chunk is in the caches. One call replaces many small operations
of PyTorch. All tensors are float32 and contiguous, with widths that `fits` allows. The last result of a forward function is the
list of tensors that its gradient needs. norms (rows, 2) contains the mean and the reciprocal standard deviation of each row. h
and act(h) are (batch, length, d_state). gu (rows, 2 d_hidden) contains silu(g) and u. sigmoid(g) is (rows, d_hidden).
"""

from __future__ import annotations

import functools
import struct

import torch
from torch import Tensor

from stablessm_core.kernels import library
from stablessm_core.scan.compiled import ACTIVATIONS

VECTOR = 16  # number of float32 values per vector; every width must be a multiple of VECTOR
MAX_WIDTH = 512
MAX_MATRIX = 1 << 17  # maximum number of entries; beyond a core's caches, libraries that split a matrix are faster

Norm = tuple[Tensor, Tensor, float]  # weight, bias, eps
Saved = list[Tensor]  # the tensors that a forward pass keeps for its gradient


def fits(d_model: int, inner: int, matrix_size: int) -> bool:
    """True if the kernels support the widths `d_model` and `inner`, and matrices of up to `matrix_size` entries."""
    return not (d_model % VECTOR or inner % VECTOR) and max(d_model, inner) <= MAX_WIDTH and matrix_size <= MAX_MATRIX


def state_space(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, gain: Tensor | None, C: Tensor, D: Tensor, activation: str
) -> tuple[Tensor, Tensor, Saved]:
    """y, the last states and the saved tensors. x (batch, length, d_model), B (d_state, d_model), gain (d_state,)."""
    batch, length, _ = x.shape
    d_state = lambda_bar.shape[0]
    y, last, norms = torch.empty_like(x), x.new_empty(batch, d_state), x.new_empty(batch * length, 2)
    h, active = x.new_empty(batch, length, d_state), x.new_empty(batch, length, d_state)
    inputs = _state_space_inputs(x, norm, lambda_bar, B, gain, C, D, activation)
    library.call("stablessm_state_space", (*inputs, *_addresses(y, last, norms, h, active)), _work(x, h))
    return y, last, [norms, h, active]


def state_space_gradient(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, gain: Tensor | None, C: Tensor, D: Tensor, activation: str,
    saved: Saved, dy: Tensor,
) -> tuple[Tensor, ...]:  # fmt: skip
    """The gradients of x, the norm's weight and bias, lambda_bar, B, C and D."""
    norms, h, active = saved
    gradients = tuple(torch.empty_like(t) for t in (x, norm[0], norm[1], lambda_bar, B, C, D))
    inputs = _state_space_inputs(x, norm, lambda_bar, B, gain, C, D, activation)
    library.call("stablessm_state_space_gradient", (*inputs, *_addresses(norms, h, active, dy, *gradients)), _work(x, h))
    return gradients


def _state_space_inputs(
    x: Tensor, norm: Norm, lambda_bar: Tensor, B: Tensor, gain: Tensor | None, C: Tensor, D: Tensor, activation: str
) -> tuple[int, ...]:
    addresses = _addresses(x, norm[0], norm[1], lambda_bar, B, gain, C, D)
    return *x.shape, lambda_bar.shape[0], ACTIVATIONS[activation], _bits(norm[2]), *addresses


def gated_mlp(x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor) -> tuple[Tensor, Saved]:
    """y and the saved tensors. x (..., d_model), gate and up (d_hidden, d_model), down (d_model, d_hidden)."""
    rows, d_hidden = x.numel() // x.shape[-1], gate.shape[0]
    y, norms = torch.empty_like(x), x.new_empty(rows, 2)
    gu, sigmoid = x.new_empty(rows, 2 * d_hidden), x.new_empty(rows, d_hidden)
    inputs = rows, x.shape[-1], d_hidden, _bits(norm[2]), *_addresses(x, norm[0], norm[1], gate, up, down)
    library.call("stablessm_gated_mlp", (*inputs, *_addresses(y, norms, gu, sigmoid)), _work(x, gu))
    return y, [norms, gu, sigmoid]


def gated_mlp_gradient(
    x: Tensor, norm: Norm, gate: Tensor, up: Tensor, down: Tensor, saved: Saved, dy: Tensor
) -> tuple[Tensor, ...]:
    """The gradients of x, the norm's weight and bias, gate, up and down."""
    norms, gu, sigmoid = saved
    gradients = tuple(torch.empty_like(t) for t in (x, norm[0], norm[1], gate, up, down))
    inputs = (
        x.numel() // x.shape[-1],
        x.shape[-1],
        gate.shape[0],
        _bits(norm[2]),
        *_addresses(x, norm[0], norm[1], gate, up, down),
    )
    library.call("stablessm_gated_mlp_gradient", (*inputs, *_addresses(norms, gu, sigmoid, dy, *gradients)), _work(x, gu))
    return gradients


def layer_norm(x: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """z, and norms (rows, 2) for the gradient. x (..., d_model)."""
    z, norms = torch.empty_like(x), x.new_empty(x.numel() // x.shape[-1], 2)
    inputs = norms.shape[0], x.shape[-1], _bits(norm[2]), *_addresses(x, norm[0], norm[1], z, norms)
    library.call("stablessm_norm", inputs, x.numel())
    return z, norms


def layer_norm_gradient(x: Tensor, norm: Norm, norms: Tensor, dz: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, weight and bias."""
    dx, d_weight, d_bias = torch.empty_like(x), torch.empty_like(norm[0]), torch.empty_like(norm[1])
    inputs = norms.shape[0], x.shape[-1], _bits(norm[2]), *_addresses(x, norm[0], norms, dz, dx, d_weight, d_bias)
    library.call("stablessm_norm_gradient", inputs, x.numel())
    return dx, d_weight, d_bias


def _addresses(*tensors: Tensor | None) -> list[int]:
    return [0 if t is None else t.data_ptr() for t in tensors]


def _work(*tensors: Tensor) -> int:
    """The amount of work, from which the library chooses the number of threads.

    It is four times the number of tensor entries, because each entry is multiplied more than ten times.
    """
    return 4 * sum(t.numel() for t in tensors)


@functools.cache
def _bits(x: float) -> int:
    """The integer with the same 64 bits as x in float64."""
    (bits,) = struct.unpack("<q", struct.pack("<d", x))
    return int(bits)
