"""The two halves of a residual block on a CPU, each as one node of autograd's graph.

    StateSpace   x + C act(h) + D z    with z = norm(x), h_t = lambda_bar h_{t-1} + B z_t
    GatedMLP     x + W_d (silu(g) u)   with z = norm(x), (g, u) = (W_g, W_u) z

A half that is one node needs few operations, and its intermediate results stay in the cache. A small half takes one kernel call
forward and one backward (`small_blocks`); a larger half is processed in chunks of the batch (`large_blocks`). The choice
between the two depends only on the shapes. `can_run` decides whether these nodes may replace PyTorch's operations: the tensors
must be float32 on a CPU, and nothing may trace or transform the operations. If a backward pass is itself differentiated, it
runs the half again with PyTorch's operations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.network import large_blocks, small_blocks
from stablessm_core.network.small_blocks import Saved
from stablessm_core.numerics.activations import ACTIVATIONS
from stablessm_core.numerics.differentiation import transformed
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan, resolve_backend
from stablessm_core.scan.autograd import is_unobserved

Inputs = tuple[Tensor, ...]


def can_run(backend: str, x: Tensor, *others: Tensor) -> bool:
    """True if the nodes of this file may replace PyTorch's operations for these tensors. backend: `train.scan_backend`."""
    if not (x.is_cpu and x.dtype is torch.float32 and x.numel()) or torch.is_autocast_enabled("cpu") or transformed():
        return False
    if not all(t.is_cpu and t.dtype is torch.float32 for t in others):
        return False
    return is_unobserved(x, *others) and resolve_backend(backend, x.device) == "cpu"


class StateSpace(NamedTuple):
    """The first half, with its constants. Its inputs: x (batch, length, d_model), the norm's weight and bias, w, B, C and D.

    map_: lambda_bar = map_(w); None means that w is lambda_bar. gain: constant factors (d_state,), one for each row of B.
    """

    eps: float
    activation: str
    map_: Reparameterization | None = None
    gain: Tensor | None = None

    def forward(self, inputs: Inputs, *, keep: bool) -> tuple[Tensor, Tensor, Saved]:
        """y, the states after the last step, and the tensors that the gradient needs."""
        x, weight, bias, w, B, C, D = inputs
        norm = weight, bias, self.eps
        lambda_bar = w if self.map_ is None else _with_numpy(self.map_.in_numpy.f, w)
        if self.is_small(inputs):
            y, last, saved = small_blocks.state_space(x, norm, lambda_bar, B, self.gain, C, D, self.activation)
        else:
            y, last, saved = large_blocks.state_space(x, norm, lambda_bar, self._scaled(B), C, D, self.activation, keep=keep)
        return y, last, [lambda_bar, *saved]

    def gradient(self, inputs: Inputs, saved: Saved, dy: Tensor) -> Inputs:
        """The gradients of all inputs."""
        x, weight, bias, w, B, C, D = inputs
        lambda_bar, *saved = saved
        norm = weight, bias, self.eps
        if self.is_small(inputs):
            gradients = small_blocks.state_space_gradient(x, norm, lambda_bar, B, self.gain, C, D, self.activation, saved, dy)
            dx, d_weight, d_bias, dw, dB, *rest = gradients
        else:
            gradients = large_blocks.state_space_gradient(x, norm, lambda_bar, self._scaled(B), C, D, self.activation, saved, dy)
            dx, d_weight, d_bias, dw, dB, *rest = gradients
            dB = self._scaled(dB)
        if self.map_ is not None:
            dw *= _with_numpy(self.map_.in_numpy.derivative, w)
        return dx, d_weight, d_bias, dw, dB, *rest

    def with_torch(self, *inputs: Tensor) -> Tensor:
        """y computed with PyTorch's operations, differentiable any number of times."""
        x, weight, bias, w, B, C, D = inputs
        lambda_bar = w if self.map_ is None else self.map_(w)
        z = functional.layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        h = linear_scan(lambda_bar, functional.linear(z, self._scaled(B)), backend="cpu")
        return x + functional.linear(ACTIVATIONS[self.activation].act(h), C) + D * z

    def _scaled(self, B: Tensor) -> Tensor:
        return B if self.gain is None else self.gain[:, None] * B

    @staticmethod
    def is_small(inputs: Inputs) -> bool:
        """True if one kernel call can compute this half."""
        d_state, d_model = inputs[-3].shape
        return small_blocks.fits(d_model, d_state, d_state * d_model)


class GatedMLP(NamedTuple):
    """The second half, with its constants. Its inputs: x (..., d_model), the norm's weight and bias, gate, up and down."""

    eps: float

    def forward(self, inputs: Inputs, *, keep: bool) -> tuple[Tensor, None, Saved]:
        """y, None (there are no states), and the tensors that the gradient needs."""
        x, weight, bias, gate, up, down = inputs
        norm = weight, bias, self.eps
        if self.is_small(inputs):
            y, saved = small_blocks.gated_mlp(x, norm, gate, up, down)
        else:
            y, saved = large_blocks.gated_mlp(x, norm, gate, up, down, keep=keep)
        return y, None, saved

    def gradient(self, inputs: Inputs, saved: Saved, dy: Tensor) -> Inputs:
        """The gradients of all inputs."""
        x, weight, bias, gate, up, down = inputs
        gradient = small_blocks.gated_mlp_gradient if self.is_small(inputs) else large_blocks.gated_mlp_gradient
        return gradient(x, (weight, bias, self.eps), gate, up, down, saved, dy)

    def with_torch(self, *inputs: Tensor) -> Tensor:
        """y computed with PyTorch's operations, differentiable any number of times."""
        x, weight, bias, gate, up, down = inputs
        z = functional.layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        return x + functional.linear(functional.silu(functional.linear(z, gate)) * functional.linear(z, up), down)

    @staticmethod
    def is_small(inputs: Inputs) -> bool:
        d_hidden, d_model = inputs[-3].shape
        return small_blocks.fits(d_model, d_hidden, 2 * d_hidden * d_model)


Half = StateSpace | GatedMLP


def weight_count(half: Half) -> int:
    """The number of inputs of the half, not counting x."""
    return 6 if isinstance(half, StateSpace) else 5


def _with_numpy(formula: Callable[[Any], Any], w: Tensor) -> Tensor:
    """formula(w), computed with numpy, which needs a fifth of PyTorch's time for the same operations."""
    with np.errstate(all="ignore"):  # non-finite values are kept, without a warning
        return torch.from_numpy(formula(w.detach().numpy()))


def apply(half: Half, x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """y, and the states after the last step, which carry no gradient (None for a GatedMLP)."""
    inputs = x.contiguous(), *(w.contiguous() for w in weights)
    if not torch.is_grad_enabled():
        y, last, _ = half.forward(inputs, keep=False)
        return y, last
    y, last = _Half.apply(half, *inputs)  # type: ignore[no-untyped-call]
    return y, last


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, half: Half, *inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        y, last, saved = half.forward(inputs, keep=True)
        ctx.half, ctx.count = half, len(inputs)
        ctx.save_for_backward(*inputs, *saved)
        if last is not None:
            ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        inputs, saved = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled():
            return None, *differentiable_gradients(ctx.half.with_torch, inputs, dy)
        return None, *ctx.half.gradient(inputs, list(saved), dy.contiguous())


def differentiable_gradients(function: Callable[..., Tensor], inputs: Inputs, dy: Tensor) -> list[Tensor | None]:
    """The differentiable gradients of the inputs; None for each input that does not require a gradient."""
    required = [t for t in inputs if t.requires_grad]
    gradients = iter(torch.autograd.grad(function(*inputs), required, dy, create_graph=True))
    return [next(gradients) if t.requires_grad else None for t in inputs]
