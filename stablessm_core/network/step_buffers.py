"""Training steps of a small network in fixed memory. The first step records its kernel calls; later steps repeat these calls.

A step of a small network takes about a millisecond, and much of this time goes into autograd's graph and allocations. While
`StepBuffers` are active, the network is one node of the graph, and each step overwrites the results of the previous step.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from stablessm_core.kernels import library
from stablessm_core.network.blocks import Inputs, StateSpace
from stablessm_core.network.network import Plan, embedding_gradient, run_backward, run_forward


class StepBuffers:
    """Buffers for the steps of a training run. Each step overwrites the values and gradients of the previous step.

    While the buffers are active, a network that runs as one autograd node uses them. Its backward pass writes the gradients of
    the weights directly into `grad`, because autograd would take 3 microseconds for each of about thirty weights. Each forward
    pass must be followed by one backward pass.
    """

    _thread: ClassVar[Any] = threading.local()

    def __init__(self) -> None:
        self._step: _RecordedStep | None = None

    @contextmanager
    def activate(self) -> Iterator[None]:
        """Use these buffers for the networks that this thread runs in the `with` block."""
        before, self._thread.active = getattr(self._thread, "active", None), self
        try:
            yield
        finally:
            self._thread.active = before

    @classmethod
    def active(cls) -> StepBuffers | None:
        """The buffers that are active in this thread; None if no buffers are active or gradients are disabled."""
        return getattr(cls._thread, "active", None) if torch.is_grad_enabled() else None

    def apply(self, plan: Plan, x: Tensor, *weights: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The output and the last states, as `network.apply` returns them. The next call overwrites the states."""
        if self._step is None or not self._step.fits(plan, x, weights):
            self._step = _RecordedStep(plan, x, weights)
        return _Replay.apply(self._step, self._step.anchor), self._step.states  # type: ignore[no-untyped-call]


class _Replay(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: _RecordedStep, _anchor: Tensor) -> Tensor:
        ctx.step = step
        return step.forward()

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("a training step in fixed buffers has no second derivatives")
        ctx.step.backward(d_output)
        return None, None


class _RecordedStep:
    """The kernel calls of one step, for a batch at a fixed address, and all tensors that these calls read or write."""

    def __init__(self, plan: Plan, x: Tensor, weights: Inputs) -> None:
        self.plan, self.x, self.weights = plan, x, weights
        self.addresses = [t.data_ptr() for t in (x, *weights)]
        self.anchor = torch.zeros((), requires_grad=True)  # an input that makes autograd call backward
        detached = tuple(w.detach() for w in weights)
        with torch.no_grad(), library.record_calls() as self.forward_calls:
            output, self.states, self.saved = run_forward(plan, x, detached)
        with torch.no_grad(), library.record_calls() as self.backward_calls:
            self.gradients, self.d_inputs = run_backward(plan, x, detached, self.saved, torch.zeros_like(output))
        encoder, inner, _, (self.head, self.bias) = plan.split(detached)
        self.encoder, self.d_encoder = encoder, self.gradients[: len(encoder)]
        _, d_inner, _, self.d_head = plan.split(tuple(self.gradients))
        self.dz, *_, self.d_features = self.d_inputs
        self.d_pooled = torch.empty_like(self.saved.pooled) if plan.pooled else self.dz.view(self.saved.pooled.shape)
        self.rows, self.features = x.reshape(-1, x.shape[-1]), self.saved.halves[0][0]
        self.maps = [
            (half.map_.in_numpy, half_weights[2].numpy(), half_saved[1].numpy(), d_weights[2].numpy())
            for half, half_weights, half_saved, d_weights in zip(plan.halves, inner, self.saved.halves, d_inner, strict=True)
            if isinstance(half, StateSpace) and half.map_ is not None
        ]

    def fits(self, plan: Plan, x: Tensor, weights: Inputs) -> bool:
        if x.shape != self.x.shape or plan[1:] != self.plan[1:] or [t.data_ptr() for t in (x, *weights)] != self.addresses:
            return False
        pairs = zip(plan.halves, self.plan.halves, strict=True)
        return all([a is b for half, mine in pairs for a, b in zip(half, mine, strict=True)])

    def forward(self) -> Tensor:
        """The output, in newly allocated memory."""
        saved, width = self.saved, self.features.shape[-1]
        with np.errstate(all="ignore"):  # non-finite values are kept, without a warning
            for formulas, w, lambda_bar, _ in self.maps:
                lambda_bar[...] = formulas.f(w)
        if self.plan.tokens:
            torch.index_select(self.encoder[0], 0, self.x.view(-1), out=self.features.view(-1, width))
        else:
            torch.addmm(self.encoder[1], self.rows, self.encoder[0].t(), out=self.features.view(-1, width))
        library.repeat_calls(self.forward_calls)
        if self.plan.pooled:
            torch.mean(saved.z, 1, out=saved.pooled)
        output = torch.addmm(self.bias, saved.pooled, self.head.t())
        return output if self.plan.pooled else output.view(*saved.z.shape[:-1], -1)

    def backward(self, d_output: Tensor) -> None:
        earlier = [None if w.grad is None else w.grad.clone() for w in self.weights]
        d_rows = d_output.reshape(-1, self.head.shape[0])
        torch.mm(d_rows.t(), self.saved.pooled, out=self.d_head[0])
        torch.sum(d_rows, 0, out=self.d_head[1])
        torch.mm(d_rows, self.head, out=self.d_pooled)
        if self.plan.pooled:
            self.dz.copy_(self.d_pooled.div_(self.dz.shape[1])[:, None])
        library.repeat_calls(self.backward_calls)
        with np.errstate(all="ignore"):
            for formulas, w, _, dw in self.maps:
                dw *= formulas.derivative(w)
        if self.plan.tokens:
            self.d_encoder[0].copy_(embedding_gradient(self.d_features, self.x, self.encoder[0]))
        else:
            d_rows = self.d_features.view(-1, self.d_features.shape[-1])
            torch.mm(d_rows.t(), self.rows, out=self.d_encoder[0])
            torch.sum(d_rows, 0, out=self.d_encoder[1])
        for weight, gradient, before in zip(self.weights, self.gradients, earlier, strict=True):
            if weight.requires_grad:
                weight.grad = gradient if before is None else before.add_(gradient)
