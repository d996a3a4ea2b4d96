"""The scan in C on CPU tensors: each row and stretch of columns is walked as the recurrence stands, states in registers.

One pass over memory forward and one backward; nothing is cut over time, and an infinite value or NaN stays in its chain. States
and the gradient of an `a` that does not vary with time are carried in float64 and rounded as they are stored, that gradient's
sums over rows in the rows' order: equal inputs give equal bits with any number of threads. A state that rounds to an infinite
value goes on as one, as in the loop. Half precision is widened as it is read, and rounded to the nearest as it is stored.

A result of 10 MiB or more, but of half precision or with an activation, is written past the caches, but for rows that are
no whole cache lines and shared by threads: it would push out more than its reader finds. Its bits are the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm_core.compiled import library

KINDS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
ACTIVATIONS = {"identity": 0, "tanh": 1, "gelu": 2, "silu": 3, "relu": 4}  # as kernels.c counts them


def states(
    a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, z: Tensor | None = None, activation: str = "identity"
) -> Tensor:
    """h of h_t = a_t h_{t-1} + b_t. a (d_state,), (groups, d_state) or as b (batch, length, d_state), h0 (batch, d_state).

    z: as b, contiguous float32: takes act(h) in the same pass, where a does not vary with time.
    """
    a, b, h0 = _dense(a), _dense(b), None if h0 is None else _dense(h0)
    h = torch.empty(b.shape, dtype=b.dtype)
    batch, length, n = b.shape
    unit = 2 if b.is_complex() else 1
    b_row, b_step, _ = b.stride()
    group, a_row, a_step = _links(a, batch)
    numbers = (
        batch, length, n * unit, group, a.dim() == 3, reverse, ACTIVATIONS[activation], False,
        a_row * unit, a_step * unit, b_row * unit, b_step * unit, length * n * unit, n * unit, 0, 0,
        0 if h0 is None else h0.stride(0) * unit,
        a.data_ptr(), b.data_ptr(), 0 if h0 is None else h0.data_ptr(), 0, h.data_ptr(), 0 if z is None else z.data_ptr(),
        0, 0, 0,
    )  # fmt: skip
    library.call(f"stablessm_states_{KINDS[b.dtype]}", numbers, h.numel() * unit)
    return h


def adjoints(
    a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None, reverse: bool, need_da: bool, need_dh0: bool,
    z: Tensor | None = None, activation: str = "identity",
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """g, da and dh0 as `autograd.LinearScan` defines them. With z = act(h), grad is the gradient of z."""
    a, h, grad, h0 = _dense(a), h.contiguous(), _dense(grad), None if h0 is None else _dense(h0)
    g = torch.empty(h.shape, dtype=h.dtype)
    da = dh0 = None
    if need_da:
        half = h.dtype in (torch.bfloat16, torch.float16)
        da = torch.empty(a.shape, dtype=torch.float32 if half and a.dim() < 3 else h.dtype)
    batch, length, n = h.shape
    if need_dh0:
        dh0 = torch.empty((batch, n), dtype=h.dtype)
    unit = 2 if h.is_complex() else 1
    d_row, d_step, _ = grad.stride()
    group, a_row, a_step = _links(a, batch)
    numbers = (
        batch, length, n * unit, group, a.dim() == 3, reverse, ACTIVATIONS[activation], need_da,
        a_row * unit, a_step * unit, 0, 0, length * n * unit, n * unit, d_row * unit, d_step * unit,
        0 if h0 is None else h0.stride(0) * unit,
        a.data_ptr(), 0, 0 if h0 is None else h0.data_ptr(), grad.data_ptr(), h.data_ptr(), 0 if z is None else z.data_ptr(),
        g.data_ptr(), 0 if da is None else da.data_ptr(), 0 if dh0 is None else dh0.data_ptr(),
    )  # fmt: skip
    library.call(f"stablessm_adjoints_{KINDS[h.dtype]}", numbers, h.numel() * unit)
    return g, da, dh0


def _dense(x: Tensor) -> Tensor:
    """Neighbouring columns side by side in memory; rows and steps may lie anywhere."""
    return x if x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _links(a: Tensor, batch: int) -> tuple[int, int, int]:
    """How many rows share one a, and its strides over rows and steps."""
    if a.dim() == 3:
        return 1, a.stride(0), a.stride(1)
    if a.dim() == 2:
        return max(1, batch // len(a)), a.stride(0), 0
    return max(1, batch), 0, 0
