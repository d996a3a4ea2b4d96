"""The fused layer as one differentiable operator, with two backends.

A backend is a module with
    forward(a, B, C, D, x, activation, products) -> (y, last, before)
    backward(a, B, C, D, x, before, grad, activation, products) -> (da, dB, dC, dD, dx)
The only saved states are `before`, (batch, chunks, d_state). The backend determines the length of a chunk. Both functions are
custom operators, so torch.compile does not trace into them.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from stablessm_core import scan
from stablessm_core.numerics.activations import ACTIVATIONS

MODULES = {"torch": "stablessm_core.fused.chunked", "triton": "stablessm_core.fused.triton_layer"}


def fused_layer(
    a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, *, activation: str, products: torch.dtype, backend: str
) -> tuple[Tensor, Tensor]:
    """y_t = C act(h_t) + D x_t with h_t = a h_{t-1} + B x_t, h_0 = 0, and the last h, which carries no gradient.

    a (d_state,), B (d_state, d_model), C (d_model, d_state) and D (d_model,) have the same dtype, float32 or float64. x is
    (batch, length, d_model) with length at least 1, and can have any floating-point dtype. products: the dtype to which both
    factors of the products with B and C are rounded; sums, states and D x keep the dtype of a. backend: "torch", or "triton"
    (only for float32, d_model up to 256 and a CUDA device). Only first derivatives are supported. Equal inputs give bitwise
    equal outputs and gradients. Because B mixes the features, a non-finite value in x affects every state of its batch row from
    that step on, but no other rows and no earlier steps.
    """
    _check(a, B, C, D, x, activation)
    if backend == "triton" and (obstacle := why_not_triton(x.device, x.shape[2], a.dtype)):
        raise ValueError(f"backend 'triton' cannot run here: {obstacle}; backend 'torch' works on {x.device}")
    y, last, _ = layer_outputs(a, B, C, D, x, activation, products, backend)
    return y, last.detach()


def _check(a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, activation: str) -> None:
    if x.dim() != 3 or x.shape[1] == 0:
        raise ValueError(f"x must be (batch, length, d_model) with length at least 1, got {tuple(x.shape)}")
    d_state, d_model = a.numel(), x.shape[2]
    wanted = {"a": (d_state,), "B": (d_state, d_model), "C": (d_model, d_state), "D": (d_model,)}
    for (name, shape), given in zip(wanted.items(), (a, B, C, D), strict=True):
        if tuple(given.shape) != shape:
            raise ValueError(f"{name} must be {shape}, got {tuple(given.shape)}")
        if given.dtype != a.dtype or a.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"a, B, C and D must all be float32 or all float64; a is {a.dtype}, {name} is {given.dtype}")
        if given.device != x.device:
            raise ValueError(f"all tensors must be on one device: x is on {x.device}, {name} on {given.device}")
    if not x.is_floating_point():
        raise TypeError(f"x must be a floating tensor, got {x.dtype}")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")


def chunk_count(length: int, d_model: int, backend: str) -> int:
    return -(-length // int(_backend(backend).chunk_length(d_model)))


@torch.library.custom_op("stablessm::layer_outputs", mutates_args=())
def layer_outputs(
    a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, activation: str, products: torch.dtype, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    outputs: tuple[Tensor, Tensor, Tensor] = _backend(backend).forward(a, B, C, D, x, activation, products)
    return outputs


@layer_outputs.register_fake
def _(
    a: Tensor, _B: Tensor, _C: Tensor, D: Tensor, x: Tensor, _activation: str, _products: torch.dtype, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    batch, length, _ = x.shape
    y = torch.empty(x.shape, dtype=torch.promote_types(D.dtype, x.dtype), device=x.device)
    return y, a.new_empty(batch, a.shape[0]), a.new_empty(batch, chunk_count(length, x.shape[2], backend), a.shape[0])


@torch.library.custom_op("stablessm::layer_gradients", mutates_args=())
def layer_gradients(
    a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, before: Tensor, grad: Tensor,
    activation: str, products: torch.dtype, backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    gradients: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _backend(backend).backward(
        a, B, C, D, x, before, grad, activation, products
    )
    return gradients


@layer_gradients.register_fake
def _(a: Tensor, B: Tensor, C: Tensor, D: Tensor, x: Tensor, *_rest: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    da, dB, dC, dD, dx = (torch.empty(p.shape, dtype=p.dtype, device=p.device) for p in (a, B, C, D, x))
    return da, dB, dC, dD, dx


def _save_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    a, B, C, D, x, ctx.activation, ctx.products, ctx.backend = inputs
    _, last, before = output
    ctx.mark_non_differentiable(last, before)
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(a, B, C, D, x, before)


def _gradients(ctx: Any, grad: Tensor | None, _last: None, _before: None) -> tuple[Tensor | None, ...]:
    if grad is None:
        return (None,) * 8
    gradients = layer_gradients(*ctx.saved_tensors, grad, ctx.activation, ctx.products, ctx.backend)
    return (*gradients, None, None, None)


layer_outputs.register_autograd(_gradients, setup_context=_save_inputs)


def why_not_triton(device: torch.device, d_model: int, dtype: torch.dtype, scan_backend: str = "auto") -> str | None:
    """The reason why the Triton kernels cannot run a layer on this device; None if they can run it."""
    if scan_backend not in ("auto", "triton"):
        return f"the scan backend is {scan_backend!r}"
    obstacle: str | None = scan.why_not_triton(device)
    if obstacle:
        return obstacle
    if dtype != torch.float32:
        return f"the kernels need float32 eigenvalues, not {dtype}"
    most: int = _backend("triton").MAX_D_MODEL
    return f"d_model is {d_model}, the kernels need at most {most}" if d_model > most else None


def _backend(name: str) -> Any:
    return importlib.import_module(MODULES[name])
