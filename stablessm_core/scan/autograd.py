"""The differentiable scan for every fast backend: the backend computes states and adjoints, and this file does everything else.

A backend is a module with
    states(a, b, h0, reverse) -> h
    adjoints(a, h, grad, h0, reverse, need_da, need_dh0) -> (g, da or None, dh0 or None)
If a does not vary with time, its shape is (d_state,), or (groups, d_state) with one row for each group of batch rows. Under
tracing and torch.func the two functions are custom operators: torch.compile does not trace into them, and torch.func.vmap
merges a replica dimension with the batch. Ordinary calls avoid the overhead of these operators and call the two functions
directly.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from stablessm_core.numerics.differentiation import transformed

MODULES = {
    "cpu": "stablessm_core.scan.compiled",
    "torch": "stablessm_core.scan.parallel",
    "triton": "stablessm_core.scan.triton_scan",
}


def scan(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, backend: str) -> Tensor:
    """All states h, differentiable any number of times, in backward and forward mode."""
    in_transform = transformed()
    if not (in_transform or torch.is_grad_enabled()):
        return _states(a, b, h0, reverse, backend)
    function = TransformedScan if in_transform else LinearScan
    h: Tensor = function.apply(a, b, h0, reverse, backend)  # type: ignore[no-untyped-call]
    return h


def _states(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, backend: str) -> Tensor:
    function: Any = states if is_unobserved(a, b, h0) else scan_states
    h: Tensor = function(a, b, h0, reverse, backend)
    return h


def _adjoints(a: Tensor, h: Tensor, grad: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    function: Any = adjoints if is_unobserved(a, h, grad) else scan_adjoints
    g_da_dh0: tuple[Tensor, Tensor, Tensor] = function(a, h, grad, *others)
    return g_da_dh0


def is_unobserved(*tensors: Tensor | None) -> bool:
    """True if nothing traces, transforms or intercepts operators.

    If so, the backend can be called directly instead of through a custom operator. This saves most of the time of a small call.
    """
    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or torch._C._are_functorch_transforms_active():
        return False
    replicated = torch._C._functorch.is_legacy_batchedtensor  # True in `autograd.grad(..., is_grads_batched=True)`
    return all(x is None or (type(x) in (Tensor, torch.nn.Parameter) and not replicated(x)) for x in tensors)


class LinearScan(torch.autograd.Function):
    """h = scan(a, b, h0). The forward pass saves a, h and h0 for the backward pass, but not b.

    The adjoint runs backwards in time: g_t = dL/dh_t + conj(a_{t+1}) g_{t+1}, with g = dL/dh at the last step. Then
    db_t = g_t, da_t = conj(h_{t-1}) g_t (summed over batch and time if a is one vector), dh0 = conj(a_1) g_1.
    """

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, backend: str) -> Tensor:
        h = _states(a, b, h0, reverse, backend)
        ctx.save_for_backward(a, h, h0)
        ctx.reverse, ctx.backend = reverse, backend
        return h

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        a, h, h0 = ctx.saved_tensors
        need_da, _, need_dh0, *_ = ctx.needs_input_grad
        differentiable = transformed() or (torch.is_grad_enabled() and not torch.compiler.is_compiling())
        function: Any = Adjoints.apply if differentiable else _adjoints
        g, da, dh0 = function(a, h, grad, h0, ctx.reverse, need_da, need_dh0, ctx.backend)
        return da if need_da else None, g, dh0 if need_dh0 else None, None, None


class TransformedScan(torch.autograd.Function):
    """`LinearScan` in the form that `torch.func` needs."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, backend: str) -> Tensor:
        h: Tensor = scan_states(a, b, h0, reverse, backend)
        return h

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        a, _, h0, ctx.reverse, ctx.backend = inputs
        ctx.save_for_backward(a, output, h0)
        ctx.save_for_forward(a, output, h0)

    backward = LinearScan.backward

    @staticmethod
    def jvp(ctx: Any, ta: Tensor | None, tb: Tensor | None, th0: Tensor | None, *_: Any) -> Tensor:
        """The tangent of h_t = a_t h_{t-1} + b_t follows the same recurrence, with the input tb_t + ta_t h_{t-1}."""
        a, h, h0 = ctx.saved_tensors
        driven = torch.zeros_like(h) if tb is None else tb
        if ta is not None:
            driven = driven + ta * previous_step(h, h0, ctx.reverse)
        return scan(a, driven, th0, ctx.reverse, ctx.backend)


class Adjoints(torch.autograd.Function):
    """(g, da, dh0) of `LinearScan` as a differentiable function, for second and higher derivatives.

    One fused launch of the backend computes the values. The derivatives use `scan` and PyTorch's own products.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None, reverse: bool, need_da: bool, need_dh0: bool, backend: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        return _adjoints(a, h, grad, h0, reverse, need_da, need_dh0, backend)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        a, h, _, h0, ctx.reverse, ctx.need_da, ctx.need_dh0, ctx.backend = inputs
        ctx.save_for_backward(a, h, output[0], h0)
        ctx.save_for_forward(a, h, output[0], h0)

    @staticmethod
    def backward(ctx: Any, grad_g: Tensor, grad_da: Tensor, grad_dh0: Tensor) -> tuple[Tensor | None, ...]:
        """dgrad = v and da_t = g_t conj(v_{t-1}), where v is the scan of u along time.

        This follows from g_t = grad_t + conj(a_{t+1}) g_{t+1}. u is the cotangent of g, plus h_{t-1} grad_da_t (through da), plus
        a_1 grad_dh0 at the first step (through dh0).
        """
        a, h, g, h0 = ctx.saved_tensors
        first = h.shape[1] - 1 if ctx.reverse else 0
        lti = a.dim() == 1
        u, dh, da, dh0 = grad_g, None, torch.zeros_like(a), None
        if ctx.need_da:
            before = previous_step(h, h0, ctx.reverse)
            u = u + before * grad_da
            d_before = grad_da.conj() * g
            dh = next_step(d_before, ctx.reverse)
            dh0 = d_before[:, first] if h0 is not None else None
        if ctx.need_dh0:
            a_first = a if lti else a[:, first]
            at_first = torch.arange(h.shape[1], device=h.device)[:, None] == first
            u = u + torch.where(at_first, (a_first * grad_dh0)[:, None], 0.0)
            d_first = g[:, first] * grad_dh0.conj()
            da = da + (d_first.sum(0) if lti else torch.where(at_first, d_first[:, None], 0.0))
        v = scan(a, u, None, ctx.reverse, ctx.backend)
        product = g * previous_step(v, None, ctx.reverse).conj()
        da = da + (product.sum((0, 1)) if lti else product)
        return da, dh, v, dh0, None, None, None, None

    @staticmethod
    def jvp(
        ctx: Any, ta: Tensor | None, th: Tensor | None, tgrad: Tensor | None, th0: Tensor | None, *_: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Product rule: the tangent of g follows the recurrence of g, with the input tgrad_t + conj(ta_{t+1}) g_{t+1}."""
        a, h, g, h0 = ctx.saved_tensors
        ta, th, tgrad = (torch.zeros_like(x) if t is None else t for x, t in ((a, ta), (h, th), (g, tgrad)))
        th0 = torch.zeros_like(h0) if th0 is None and h0 is not None else th0
        first = h.shape[1] - 1 if ctx.reverse else 0
        driven = tgrad + next_step(ta.conj() * g, ctx.reverse)
        tg, _, _ = Adjoints.apply(a, h, driven, h0, ctx.reverse, False, False, ctx.backend)  # type: ignore[no-untyped-call]
        tda, tdh0 = h.new_zeros(0), h.new_zeros(0)
        if ctx.need_da:
            tda = previous_step(th, th0, ctx.reverse).conj() * g + previous_step(h, h0, ctx.reverse).conj() * tg
            tda = tda.sum((0, 1)) if a.dim() == 1 else tda
        if ctx.need_dh0:
            a_first, ta_first = (x if x.dim() == 1 else x[:, first] for x in (a, ta))
            tdh0 = ta_first.conj() * g[:, first] + a_first.conj() * tg[:, first]
        return tg, tda, tdh0


def previous_step(h: Tensor, h0: Tensor | None, reverse: bool) -> Tensor:
    """h_{t-1}, with t counted in the direction of the recurrence. At the first step, the result is h0, or zero without h0."""
    edge = (torch.zeros_like(h[:, 0]) if h0 is None else h0)[:, None]
    return torch.cat([h[:, 1:], edge], 1) if reverse else torch.cat([edge, h[:, :-1]], 1)


def next_step(x: Tensor, reverse: bool) -> Tensor:
    """x_{t+1}, with t counted in the direction of the recurrence. At the last step, the result is zero."""
    return previous_step(x, None, not reverse)


def states(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, backend: str) -> Tensor:
    h: Tensor = backend_module(backend).states(
        _materialized(a), _materialized(b), None if h0 is None else _materialized(h0), reverse
    )
    return h


scan_states = torch.library.custom_op("stablessm::scan_states", states, mutates_args=())


@scan_states.register_fake
def _(a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, backend: str) -> Tensor:  # noqa: ARG001
    return torch.empty(b.shape, dtype=common_dtype(a, b, h0), device=b.device)


@scan_states.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, h0: Tensor | None, reverse: bool, backend: str
) -> tuple[Tensor, int]:
    a, b, h0 = _folded(info.batch_size, in_dims[:3], a, b, h0)
    return scan_states(a, b, h0, reverse, backend).unflatten(0, (info.batch_size, -1)), 0


def adjoints(
    a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None, reverse: bool, need_da: bool, need_dh0: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    """g, da, dh0; da and dh0 are empty tensors if they are not needed."""
    g, da, dh0 = backend_module(backend).adjoints(
        _materialized(a),
        _materialized(h),
        _materialized(grad),
        None if h0 is None else _materialized(h0),
        reverse,
        need_da,
        need_dh0,
    )
    return g, h.new_empty(0) if da is None else da, h.new_empty(0) if dh0 is None else dh0


scan_adjoints = torch.library.custom_op("stablessm::scan_adjoints", adjoints, mutates_args=())


@scan_adjoints.register_fake
def _(a: Tensor, h: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    *_, need_da, need_dh0, _ = others
    g, da, dh0 = torch.empty(h.shape, dtype=h.dtype, device=h.device), h.new_empty(0), h.new_empty(0)
    if need_da:
        da = h.new_empty(a.shape, dtype=accumulator_of(h.dtype) if a.dim() < 3 else h.dtype)
    if need_dh0:
        dh0 = h.new_empty((h.shape[0], h.shape[2]))
    return g, da, dh0


@scan_adjoints.register_vmap
def _(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, h: Tensor, grad: Tensor, h0: Tensor | None,
    reverse: bool, need_da: bool, need_dh0: bool, backend: str,
) -> tuple[tuple[Tensor, Tensor, Tensor], tuple[int | None, ...]]:  # fmt: skip
    replicas, a_dim = info.batch_size, in_dims[0]
    if need_da and a_dim is None:  # each replica has its own gradient
        a, a_dim = a.expand(replicas, *a.shape), 0
    one_vector = a.dim() - (a_dim is not None) == 1
    grad = _leading(grad, in_dims[2], replicas).flatten(0, 1)
    a, h, h0 = _folded(replicas, (a_dim, in_dims[1], in_dims[3]), a, h, h0)
    g, da, dh0 = scan_adjoints(a, h, grad, h0, reverse, need_da, need_dh0, backend)
    if need_da and not one_vector:
        da = da.unflatten(0, (replicas, -1))
    if need_dh0:
        dh0 = dh0.unflatten(0, (replicas, -1))
    return (g.unflatten(0, (replicas, -1)), da, dh0), (0, 0 if need_da else None, 0 if need_dh0 else None)


def _folded(
    replicas: int, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, h0: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The arguments with replicas merged into the batch. A batched `a` that does not vary with time has one row per replica."""
    a_dim, b_dim, h0_dim = in_dims
    b = _leading(b, b_dim, replicas).flatten(0, 1)
    if a_dim is not None or a.dim() > 1:
        a = _leading(a, a_dim, replicas)
        a = a.flatten(0, 1) if a.dim() > 2 else a
    return a, b, None if h0 is None else _leading(h0, h0_dim, replicas).flatten(0, 1)


def _leading(x: Tensor, dim: int | None, replicas: int) -> Tensor:
    return x.expand(replicas, *x.shape) if dim is None else x.movedim(dim, 0)


def backend_module(backend: str) -> ModuleType:
    """The backend's module, imported at first use, because Triton is slow to import and is missing on some platforms."""
    return sys.modules.get(MODULES[backend]) or importlib.import_module(MODULES[backend])


def common_dtype(a: Tensor, b: Tensor, h0: Tensor | None) -> torch.dtype:
    if a.dtype == b.dtype and (h0 is None or h0.dtype == b.dtype):
        return b.dtype
    common = torch.promote_types(a.dtype, b.dtype)
    return common if h0 is None else torch.promote_types(common, h0.dtype)


def accumulator_of(dtype: torch.dtype) -> torch.dtype:
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def _materialized(x: Tensor) -> Tensor:
    """x with PyTorch's lazy conjugation and negation applied, because a kernel that reads the memory would miss them."""
    return x.resolve_conj().resolve_neg() if x.is_conj() or x.is_neg() else x
