"""The fused layer on any device that PyTorch supports. It is computed in chunks of CHUNK steps.

Only the states of one chunk exist at a time.

The backward pass goes from the last chunk to the first. For each chunk, it recomputes the states from the saved state that
precedes the chunk.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.scan import linear_scan

CHUNK = 128


def chunk_length(_d_model: int) -> int:
    """The number of steps in a chunk."""
    return CHUNK


def forward(
    a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, activation: str, products: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """y, the state after the last step, and the state before each chunk, (batch, chunks, d_state)."""
    batch, length, _ = x.shape
    y = torch.empty(x.shape, dtype=torch.promote_types(D.dtype, x.dtype), device=x.device)
    before = torch.empty((batch, -(-length // CHUNK), len(a)), dtype=a.dtype, device=x.device)
    B, C = B.to(products), C.to(products)
    state = a.new_zeros(batch, len(a))
    for i, chunk in enumerate(_chunks(length)):
        before[:, i] = state
        h = _states(a, B, x[:, chunk], state)
        torch.addcmul(_product(ACTIVATIONS[activation].act(h), C), D, x[:, chunk], out=y[:, chunk])
        state = h[:, -1]
    return y, state.clone(), before


def backward(
    a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, before: Tensor, grad: Tensor, activation: str, products: torch.dtype
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of a, B, C, D and x; g_t = act'(h_t) (C^T grad_t) + a g_{t+1} is the adjoint of h_t."""
    dx = torch.empty_like(x)
    da, dB, dC, dD = (torch.zeros_like(p) for p in (a, B, C, D))
    B, C = B.to(products), C.to(products)
    after = a.new_zeros(len(x), len(a))  # a * g at the first step of the next chunk
    for i, chunk in reversed(list(enumerate(_chunks(x.shape[1])))):
        x_i, grad_i = x[:, chunk], grad[:, chunk]
        h = _states(a, B, x_i, before[:, i])
        z = ACTIVATIONS[activation].act(h)
        g = ACTIVATIONS[activation].gradient(_product(grad_i, C.t()).to(h.dtype), h, z)
        g[:, -1] += after
        g = linear_scan(a, g, reverse=True)
        torch.add(_product(g, B.t()), D * grad_i, out=dx[:, chunk])
        da += (before[:, i] * g[:, 0]).sum(0) + (h[:, :-1] * g[:, 1:]).sum((0, 1))
        dB += _outer(g, x_i, products)
        dC += _outer(grad_i, z, products)
        dD += (grad_i * x_i).sum((0, 1))
        after = a * g[:, 0]
    return da, dB, dC, dD, dx


def _chunks(length: int) -> Iterator[slice]:
    return (slice(start, min(start + CHUNK, length)) for start in range(0, length, CHUNK))


def _states(a: Tensor, B: Tensor, x: Tensor, state: Tensor) -> Tensor:
    return linear_scan(a, _product(x, B).to(a.dtype), state)


def _product(x: Tensor, weight: Tensor) -> Tensor:
    """x weight^T in the precision of the weight."""
    return functional.linear(x.to(weight.dtype), weight)


def _outer(x: Tensor, y: Tensor, products: torch.dtype) -> Tensor:
    """The sum of x_i y_j over batch and time, (features of x, features of y)."""
    return x.to(products).flatten(0, 1).t() @ y.to(products).flatten(0, 1)
