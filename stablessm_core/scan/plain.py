"""The short way from `linear_scan` to the C kernels, for plain tensors on the CPU.

A small scan takes about 10 microseconds in C, which is less than the general way takes to check its arguments, choose a backend
and prepare for transforms. The values are those of the general way, bit for bit.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from stablessm_core.scan import compiled
from stablessm_core.scan.autograd import LinearScan

_TYPES = (Tensor, torch.nn.Parameter)
_wrapped, _replicated = torch._C._functorch.is_functorch_wrapped_tensor, torch._C._functorch.is_legacy_batchedtensor
_DTYPES = frozenset(dtype for dtype in compiled.KINDS if not dtype.is_complex)


def fits(a: Tensor, b: Tensor, h0: Tensor | None) -> bool:
    """True if the kernels can scan these tensors as they are: valid arguments of one real dtype on the CPU, and nothing traces
    or transforms operators.

    If the result is False, `linear_scan` takes the general way, which also raises the errors for invalid arguments.
    """
    if not _is_unobserved() or type(a) not in _TYPES or type(b) not in _TYPES:
        return False
    dtype, shape = b.dtype, b.shape
    if dtype not in _DTYPES or len(shape) != 3 or not shape[1] or a.shape not in (shape, shape[2:]):
        return False
    if h0 is not None and not (type(h0) in _TYPES and h0.shape == (shape[0], shape[2]) and _is_readable(h0, dtype)):
        return False
    return _is_readable(a, dtype) and _is_readable(b, dtype)


def _is_unobserved() -> bool:
    """True if nothing traces or transforms operators."""
    return not (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def _is_readable(x: Tensor, dtype: torch.dtype) -> bool:
    """True if a kernel can read the memory of x: a tensor on the CPU that is neither sparse, lazily negated nor wrapped."""
    return x.dtype is dtype and x.is_cpu and x.layout is torch.strided and not x.is_neg() and not (_wrapped(x) or _replicated(x))


def scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """All states h. Derivatives of any order are supported."""
    if not torch.is_grad_enabled():
        return compiled.states(a, b, h0, reverse)
    h: Tensor = _apply(a, b, h0, reverse)
    return h


class _PlainScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
        h = compiled.states(a, b, h0, reverse)
        ctx.save_for_backward(a, h, h0)
        ctx.reverse, ctx.backend = reverse, "cpu"
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled() or not (_is_unobserved() and type(grad) in _TYPES and _is_readable(grad, grad.dtype)):
            return LinearScan.backward(ctx, grad)[:4]
        a, h, h0 = ctx.saved_tensors
        need_da, _, need_dh0, _ = ctx.needs_input_grad
        g, da, dh0 = compiled.adjoints(a, h, grad, h0, ctx.reverse, need_da, need_dh0)
        return da, g, dh0, None


# `Function.apply` takes 2 microseconds to prepare for transforms of torch.func, in which `fits` is False
_apply: Any = super(torch.autograd.Function, _PlainScan).apply
