"""The halves of a residual block on a CPU, each one node of autograd's graph: few operations, and numbers that stay in the cache.

    StateSpace   x + C act(h) + D z    with z = norm(x), h_t = lambda_bar h_{t-1} + B z_t
    GatedMLP     x + W_d (silu(g) u)   with z = norm(x), (g, u) = (W_g, W_u) z

Small widths are one call of a kernel each way (`halves`), others a walk through the batch with products by whichever library
is faster (`pieces`); which of the two depends on shapes alone. They take float32 on a CPU and nothing else that looks on
(`serves`). Second derivatives are those of the ordinary operations: a backward pass that is itself differentiated makes the half
again with them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from stablessm_core.activations import ACTIVATIONS
from stablessm_core.compiled import halves, pieces
from stablessm_core.compiled.halves import Kept
from stablessm_core.differentiation import transformed
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan, resolve_backend
from stablessm_core.scan.autograd import unseen

Given = tuple[Tensor, ...]


def serves(backend: str, x: Tensor, *others: Tensor) -> bool:
    """May these functions stand for the ordinary ones here? backend: `train.scan_backend`."""
    if not (x.is_cpu and x.dtype is torch.float32 and x.numel()) or torch.is_autocast_enabled("cpu") or transformed():
        return False
    if not all(t.is_cpu and t.dtype is torch.float32 for t in others):
        return False
    return unseen(x, *others) and resolve_backend(backend, x.device) == "cpu"


class StateSpace(NamedTuple):
    """What is constant of the first half. Given: x (batch, length, d_model), the norm's weight and bias, w, B, C, D.

    map_: lambda_bar = map_(w); None: w is lambda_bar. gain: a constant (d_state,) with which the rows of B are multiplied.
    """

    eps: float
    activation: str
    map_: Reparameterization | None = None
    gain: Tensor | None = None

    def forward(self, given: Given, *, keep: bool) -> tuple[Tensor, Tensor, Kept]:
        """y, the states after the last step, and what the gradient needs."""
        x, weight, bias, w, B, C, D = given
        norm = weight, bias, self.eps
        lambda_bar = w if self.map_ is None else _of_few(self.map_.in_numpy.f, w)
        if self.small(given):
            y, last, kept = halves.state_space(x, norm, lambda_bar, B, self.gain, C, D, self.activation)
        else:
            y, last, kept = pieces.state_space(x, norm, lambda_bar, self._gained(B), C, D, self.activation, keep=keep)
        return y, last, [lambda_bar, *kept]

    def gradient(self, given: Given, kept: Kept, dy: Tensor) -> Given:
        """Of all that was given."""
        x, weight, bias, w, B, C, D = given
        lambda_bar, *kept = kept
        norm = weight, bias, self.eps
        if self.small(given):
            found = halves.state_space_gradient(x, norm, lambda_bar, B, self.gain, C, D, self.activation, kept, dy)
            dx, d_weight, d_bias, dw, dB, *rest = found
        else:
            found = pieces.state_space_gradient(x, norm, lambda_bar, self._gained(B), C, D, self.activation, kept, dy)
            dx, d_weight, d_bias, dw, dB, *rest = found
            dB = self._gained(dB)
        if self.map_ is not None:
            dw *= _of_few(self.map_.in_numpy.derivative, w)
        return dx, d_weight, d_bias, dw, dB, *rest

    def ordinary(self, *given: Tensor) -> Tensor:
        """The same by PyTorch's operations, differentiable as often as they are."""
        x, weight, bias, w, B, C, D = given
        lambda_bar = w if self.map_ is None else self.map_(w)
        z = functional.layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        h = linear_scan(lambda_bar, functional.linear(z, self._gained(B)), backend="cpu")
        return x + functional.linear(ACTIVATIONS[self.activation].act(h), C) + D * z

    def _gained(self, B: Tensor) -> Tensor:
        return B if self.gain is None else self.gain[:, None] * B

    @staticmethod
    def small(given: Given) -> bool:
        """Does one call of a kernel do it?"""
        d_state, d_model = given[-3].shape
        return halves.fits(d_model, d_state, d_state * d_model)


class GatedMLP(NamedTuple):
    """What is constant of the second half. Given: x (..., d_model), the norm's weight and bias, gate, up, down."""

    eps: float

    def forward(self, given: Given, *, keep: bool) -> tuple[Tensor, None, Kept]:
        """y, no states, and what the gradient needs."""
        x, weight, bias, gate, up, down = given
        norm = weight, bias, self.eps
        if self.small(given):
            y, kept = halves.gated_mlp(x, norm, gate, up, down)
        else:
            y, kept = pieces.gated_mlp(x, norm, gate, up, down, keep=keep)
        return y, None, kept

    def gradient(self, given: Given, kept: Kept, dy: Tensor) -> Given:
        """Of all that was given."""
        x, weight, bias, gate, up, down = given
        gradient = halves.gated_mlp_gradient if self.small(given) else pieces.gated_mlp_gradient
        return gradient(x, (weight, bias, self.eps), gate, up, down, kept, dy)

    def ordinary(self, *given: Tensor) -> Tensor:
        """The same by PyTorch's operations, differentiable as often as they are."""
        x, weight, bias, gate, up, down = given
        z = functional.layer_norm(x, x.shape[-1:], weight, bias, self.eps)
        return x + functional.linear(functional.silu(functional.linear(z, gate)) * functional.linear(z, up), down)

    @staticmethod
    def small(given: Given) -> bool:
        d_hidden, d_model = given[-3].shape
        return halves.fits(d_model, d_hidden, 2 * d_hidden * d_model)


Half = StateSpace | GatedMLP


def weights_of(half: Half) -> int:
    """How many it is given beside x."""
    return 6 if isinstance(half, StateSpace) else 5


def _of_few(formula: Callable[[Any], Any], w: Tensor) -> Tensor:
    """What numpy makes of w, which costs a fifth of what a few operations of PyTorch do."""
    with np.errstate(all="ignore"):  # what is not finite goes on as it is
        return torch.from_numpy(formula(w.detach().numpy()))


def apply(half: Half, x: Tensor, *weights: Tensor) -> tuple[Tensor, Tensor | None]:
    """y and, of a state space, the states after the last step, without a gradient."""
    given = x.contiguous(), *(w.contiguous() for w in weights)
    if not torch.is_grad_enabled():
        y, last, _ = half.forward(given, keep=False)
        return y, last
    y, last = _Half.apply(half, *given)  # type: ignore[no-untyped-call]
    return y, last


class _Half(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, half: Half, *given: Tensor) -> tuple[Tensor, Tensor | None]:
        y, last, kept = half.forward(given, keep=True)
        ctx.half, ctx.count = half, len(given)
        ctx.save_for_backward(*given, *kept)
        if last is not None:
            ctx.mark_non_differentiable(last)
        return y, last

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
        given, kept = ctx.saved_tensors[: ctx.count], ctx.saved_tensors[ctx.count :]
        if torch.is_grad_enabled():
            return None, *again(ctx.half.ordinary, given, dy)
        return None, *ctx.half.gradient(given, list(kept), dy.contiguous())


def again(ordinary: Callable[..., Tensor], given: Given, dy: Tensor) -> list[Tensor | None]:
    """The gradients of what asks for one, themselves differentiable."""
    asked = [t for t in given if t.requires_grad]
    found = iter(torch.autograd.grad(ordinary(*given), asked, dy, create_graph=True))
    return [next(found) if t.requires_grad else None for t in given]
