"""The scan on CPU tensors, in C. It computes a range of columns of one batch row step by step, with the states in registers.

The forward scan takes one pass over memory, and so does the backward scan. Time is not split into chunks, so an infinite value
or NaN never affects earlier steps, other rows or other columns. States are accumulated in float64 and rounded when they are
stored. The gradient of an `a` that does not vary with time is also accumulated in float64, and summed over rows in order, so
equal inputs give equal bits with any number of threads. If a state rounds to an infinite value, the recurrence continues with
that value, as in the loop of `reference`. Half precision is converted when it is read, and rounded to the nearest value when it
is stored.

A result of 10 MiB or more bypasses the caches, because it would evict other data, and little of it would still be cached when
it is read. The bits of a result do not depend on the bypass. Three kinds of results never bypass the caches: results in half
precision, results of an activation, and rows that several threads share and that do not consist of whole cache lines.
"""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm_core.kernels import library

KINDS = {
    torch.float32: "f32",
    torch.float64: "f64",
    torch.complex64: "c64",
    torch.complex128: "c128",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
}
STATES = {dtype: f"stablessm_states_{kind}" for dtype, kind in KINDS.items()}
ADJOINTS = {dtype: f"stablessm_adjoints_{kind}" for dtype, kind in KINDS.items()}
ACTIVATIONS = {"identity": 0, "tanh": 1, "gelu": 2, "silu": 3, "relu": 4}  # the number of each activation in kernels.c


def states(
    a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, z: Tensor | None = None, activation: str = "identity"
) -> Tensor:
    """The states h of h_t = a_t h_{t-1} + b_t.

    a (d_state,), (groups, d_state) or b's shape (batch, length, d_state), h0 (batch, d_state).
    z (b's shape, contiguous float32) receives act(h) in the same pass. z may be given only if a does not vary with time.
    """
    a, b, h0 = _dense(a), _dense(b), None if h0 is None else _dense(h0)
    h = torch.empty_like(b, memory_format=torch.contiguous_format)  # takes half the time of torch.empty
    batch, length, n = b.shape
    unit = 2 if b.is_complex() else 1
    b_row, b_step, _ = b.stride()
    group, a_row, a_step = _a_strides(a, batch)
    numbers = (
        batch, length, n * unit, group, a.dim() == 3, reverse, ACTIVATIONS[activation], False,
        a_row * unit, a_step * unit, b_row * unit, b_step * unit, length * n * unit, n * unit, 0, 0,
        0 if h0 is None else h0.stride(0) * unit,
        a.data_ptr(), b.data_ptr(), 0 if h0 is None else h0.data_ptr(), 0, h.data_ptr(), 0 if z is None else z.data_ptr(),
        0, 0, 0,
    )  # fmt: skip
    library.call(STATES[b.dtype], numbers, h.numel() * unit)
    return h


def adjoints(
    a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None, reverse: bool, need_da: bool, need_dh0: bool,
    z: Tensor | None = None, activation: str = "identity",
) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """g, da and dh0 as `autograd.LinearScan` defines them. If z = act(h) is given, grad is the gradient of z."""
    a, h, grad, h0 = _dense(a), h.contiguous(), _dense(grad), None if h0 is None else _dense(h0)
    g = torch.empty_like(h)
    da = dh0 = None
    if need_da:
        narrow = a.dim() < 3 and h.dtype in (torch.bfloat16, torch.float16)
        da = torch.empty_like(a, dtype=torch.float32 if narrow else h.dtype, memory_format=torch.contiguous_format)
    batch, length, n = h.shape
    if need_dh0:
        dh0 = torch.empty((batch, n), dtype=h.dtype)
    unit = 2 if h.is_complex() else 1
    d_row, d_step, _ = grad.stride()
    group, a_row, a_step = _a_strides(a, batch)
    numbers = (
        batch, length, n * unit, group, a.dim() == 3, reverse, ACTIVATIONS[activation], need_da,
        a_row * unit, a_step * unit, 0, 0, length * n * unit, n * unit, d_row * unit, d_step * unit,
        0 if h0 is None else h0.stride(0) * unit,
        a.data_ptr(), 0, 0 if h0 is None else h0.data_ptr(), grad.data_ptr(), h.data_ptr(), 0 if z is None else z.data_ptr(),
        g.data_ptr(), 0 if da is None else da.data_ptr(), 0 if dh0 is None else dh0.data_ptr(),
    )  # fmt: skip
    library.call(ADJOINTS[h.dtype], numbers, h.numel() * unit)
    return g, da, dh0


def _dense(x: Tensor) -> Tensor:
    """x with neighbouring columns adjacent in memory. Rows and steps may have any stride."""
    return x if x.is_contiguous() or x.stride(-1) == 1 or x.shape[-1] == 1 else x.contiguous()


def _a_strides(a: Tensor, batch: int) -> tuple[int, int, int]:
    """The number of batch rows that share the same values of a, and the strides of a over rows and steps."""
    strides = a.stride()
    if len(strides) == 1:
        return max(1, batch), 0, 0
    if len(strides) == 3:
        return 1, strides[0], strides[1]
    return max(1, batch // len(a)), strides[0], 0
