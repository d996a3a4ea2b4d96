"""The linear recurrence h_t = a_t h_{t-1} + b_t, differentiable, in interchangeable backends."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm_core.compiled import library
from stablessm_core.compiling import constant_when_compiled
from stablessm_core.scan import reference
from stablessm_core.scan.autograd import backend_module, common_dtype, scan

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128})
BACKENDS = ("auto", "cpu", "reference", "torch", "triton")

__all__ = ["BACKENDS", "linear_scan", "resolve_backend", "why_not_compiled", "why_not_triton"]


def linear_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, *, reverse: bool = False, backend: str = "auto") -> Tensor:
    """All states of a diagonal linear recurrence.

    h_t = a_t h_{t-1} + b_t for t = 1..length with h_0 = h0; with `reverse`, h_t = a_t h_{t+1} + b_t from the last step to the
    first, h0 standing after the last step. None: nothing stands there and the first state is b alone. That is h0 = 0 where a is
    finite; a NaN or infinite a spoils the first state only if there is an h0 for it to multiply.

    a: (d_state,), the same at every step, or b's shape. b: (batch, length, d_state), length at least 1. h0: (batch, d_state).
    Any strides. Real (float16, bfloat16, float32, float64) or complex (complex64, complex128), on one device.
    backend: "reference" is the loop, "torch" runs in parallel on any device, "cpu" is compiled code and needs tensors on the CPU,
    "triton" needs a CUDA device, "auto" takes the fastest one that works here. Returns h, b's shape, in the common dtype of the
    arguments; half-precision inputs are accumulated in float32. Differentiable any number of times in a, b and h0; the same
    inputs give the same bits, gradients included. Works under torch.compile and torch.func (vmap: a replica dimension of any
    argument).

    Raises TypeError for what is no floating or complex tensor, ValueError for shapes, devices and backends that do not fit.
    """
    _check(a, b, h0)
    name = resolve_backend(backend, b.device)
    dtype = common_dtype(a, b, h0)
    compute = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if name == "cpu":  # its kernels widen what they read, all of one dtype
        a, b, h0 = _of(dtype, a), _of(dtype, b), None if h0 is None else _of(dtype, h0)
    elif name != "triton" or dtype.is_complex:  # those widen real inputs of any
        a, b, h0 = _of(compute, a), _of(compute, b), None if h0 is None else _of(compute, h0)
    return _of(dtype, reference.scan(a, b, h0, reverse) if name == "reference" else scan(a, b, h0, reverse, name))


def resolve_backend(backend: str, device: torch.device | str) -> str:
    """The backend that "auto" stands for on this device, or `backend` itself if it can run there.

    Raises ValueError for an unknown name and for a backend that cannot run there, saying what is missing and what would work.
    """
    device = torch.device(device)
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "triton" and (missing := why_not_triton(device)):
        raise ValueError(f"backend 'triton' cannot run here: {missing}; backend 'torch' works on {device}")
    if backend == "cpu" and (missing := why_not_compiled(device)):
        raise ValueError(f"backend 'cpu' cannot run here: {missing}; backend 'torch' works on {device}")
    if backend != "auto":
        return backend
    if device.type == "cuda":
        return "triton" if why_not_triton(device) is None else "torch"
    return "cpu" if why_not_compiled(device) is None else "torch"


def _of(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


@constant_when_compiled
def why_not_compiled(device: torch.device) -> str | None:
    """What keeps the compiled kernels from running on tensors of this device, or None."""
    return library.why_not_compiled() if device.type == "cpu" else f"tensors are on {device}, its kernels need the CPU"


@constant_when_compiled
def why_not_triton(device: torch.device) -> str | None:
    """What keeps the Triton kernels from running on this device, or None."""
    try:
        module = backend_module("triton")
    except ImportError as error:
        return f"Triton is not installed ({error})"
    missing: str | None = module.missing(device)
    return missing


def _check(a: Tensor, b: Tensor, h0: Tensor | None) -> None:
    given = {"a": a, "b": b} if h0 is None else {"a": a, "b": b, "h0": h0}
    for name, x in given.items():
        if not isinstance(x, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(x).__name__}")
        if x.dtype not in DTYPES:
            raise TypeError(f"{name} must be float16, bfloat16, float32, float64, complex64 or complex128, got {x.dtype}")
    for name, x in given.items():
        if x.device != b.device:
            raise ValueError(f"all tensors must be on one device: b is on {b.device}, {name} on {x.device}")
    if b.dim() != 3 or b.shape[1] == 0:
        raise ValueError(f"b must be (batch, length, d_state) with length at least 1, got {tuple(b.shape)}")
    batch, _, d_state = b.shape
    if a.shape not in (b.shape, (d_state,)):
        raise ValueError(f"a must be ({d_state},) or b's shape {tuple(b.shape)}, got {tuple(a.shape)}")
    if h0 is not None and h0.shape != (batch, d_state):
        raise ValueError(f"h0 must be (batch, d_state) = ({batch}, {d_state}), got {tuple(h0.shape)}")
