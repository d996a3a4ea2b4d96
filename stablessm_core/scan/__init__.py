"""The linear recurrence h_t = a_t h_{t-1} + b_t, differentiable, with interchangeable backends."""

from __future__ import annotations

import torch
from torch import Tensor

from stablessm_core.kernels import library
from stablessm_core.numerics.compiling import constant_when_compiled
from stablessm_core.scan import plain, reference
from stablessm_core.scan.autograd import backend_module, common_dtype, scan

DTYPES = frozenset({torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128})
CPU = torch.device("cpu")
BACKENDS = ("auto", "cpu", "reference", "torch", "triton")

__all__ = ["BACKENDS", "linear_scan", "resolve_backend", "why_not_compiled", "why_not_triton"]


def linear_scan(a: Tensor, b: Tensor, h0: Tensor | None = None, *, reverse: bool = False, backend: str = "auto") -> Tensor:
    """All states of a diagonal linear recurrence.

    h_t = a_t h_{t-1} + b_t for t = 1..length with h_0 = h0. With `reverse`, h_t = a_t h_{t+1} + b_t from the last step to the
    first, and h0 is the state after the last step. If h0 is None, the first state is the first b. For a finite a, this is the
    same as h0 = 0; a NaN or infinite a affects the first state only if h0 is given.

    a: (d_state,) if a is the same at every step, otherwise b's shape. b: (batch, length, d_state), length at least 1. h0:
    (batch, d_state).
    Strides are arbitrary. Dtypes are real (float16, bfloat16, float32, float64) or complex (complex64, complex128). All tensors
    must be on one device.
    backend: "reference" is a loop over time, "torch" runs in parallel on any device, "cpu" is compiled code for tensors on the
    CPU, "triton" needs a CUDA device, and "auto" chooses the fastest backend that can run on b's device.
    Returns h, in the shape of b and the common dtype of the arguments. Half-precision inputs are accumulated in float32.
    Differentiable any number of times in a, b and h0. The same inputs give the same bits, in gradients as well. Works under
    torch.compile and torch.func (with vmap, any argument may have a replica dimension).

    Raises TypeError if an argument is not a tensor of one of these dtypes, and ValueError if shapes or devices do not fit
    together or the backend cannot run.
    """
    if plain.fits(a, b, h0) and resolve_backend(backend, CPU) == "cpu":
        return plain.scan(a, b, h0, reverse)
    _check(a, b, h0)
    name = resolve_backend(backend, b.device)
    dtype = common_dtype(a, b, h0)
    compute = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    if name == "cpu":  # the C kernels convert while they read, but need one common dtype
        a, b, h0 = _to(dtype, a), _to(dtype, b), None if h0 is None else _to(dtype, h0)
    elif name != "triton" or dtype.is_complex:  # the Triton kernels convert real inputs of any dtype
        a, b, h0 = _to(compute, a), _to(compute, b), None if h0 is None else _to(compute, h0)
    return _to(dtype, reference.scan(a, b, h0, reverse) if name == "reference" else scan(a, b, h0, reverse, name))


def resolve_backend(backend: str, device: torch.device | str) -> str:
    """The backend to use on this device: the fastest backend for "auto", otherwise `backend` itself.

    Raises ValueError for an unknown name and for a backend that cannot run on this device. The message states what is missing
    and which backend would work.
    """
    device = torch.device(device)
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}")
    if backend == "triton" and (obstacle := why_not_triton(device)):
        raise ValueError(f"backend 'triton' cannot run here: {obstacle}; backend 'torch' works on {device}")
    if backend == "cpu" and (obstacle := why_not_compiled(device)):
        raise ValueError(f"backend 'cpu' cannot run here: {obstacle}; backend 'torch' works on {device}")
    if backend != "auto":
        return backend
    if device.type == "cuda":
        return "triton" if why_not_triton(device) is None else "torch"
    return "cpu" if why_not_compiled(device) is None else "torch"


def _to(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x if x.dtype == dtype else x.to(dtype)


@constant_when_compiled
def why_not_compiled(device: torch.device) -> str | None:
    """Why the compiled kernels cannot run on tensors of this device; None if the kernels can run."""
    return library.why_not_compiled() if device.type == "cpu" else f"tensors are on {device}, its kernels need the CPU"


@constant_when_compiled
def why_not_triton(device: torch.device) -> str | None:
    """Why the Triton kernels cannot run on this device; None if the kernels can run."""
    try:
        module = backend_module("triton")
    except ImportError as error:
        return f"Triton is not installed ({error})"
    obstacle: str | None = module.why_not(device)
    return obstacle


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
