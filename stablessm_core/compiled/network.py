"""A small network on a CPU as one node of autograd's graph: what is left of a step of a millisecond is mostly the graph itself.

    features = encoder(x); each half of each block; norm; for classification the mean over time; head

The arithmetic is that of the kernels of `halves`, called one after the other; that of the encoder, the mean and the head is
PyTorch's. A training step repeats the calls of the one before it in the same memory (`Memory`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.compiled import blocks, halves, library
from stablessm_core.compiled.blocks import Given, Half, again, weights_of
from stablessm_core.scan.autograd import unseen

MOST = 1 << 19  # numbers of the features: beyond, a node more costs nothing, and its memory is free as soon as it is done


class Places(NamedTuple):
    """Where the weights of a network lie, as long as its modules are the ones that they were; looking for them takes longer."""

    tree: list[tuple[dict[str, Any], dict[str, Any]]]  # the modules in each module, and a copy of them
    modules: list[nn.Module]
    slots: list[tuple[dict[str, Any], str]]
    complete: bool  # there is no weight beside them, and they belong to what the plan takes them for

    @classmethod
    def of(cls, model: nn.Module, weights: list[tuple[nn.Module, str]]) -> Places:
        """weights: in the order of `Plan`, each as a module and the weight's name in it."""
        modules, slots = list(model.modules()), [(m._parameters, name) for m, name in weights]
        plain = all(type(m) in (nn.Embedding, nn.Linear, nn.LayerNorm) or hasattr(m, "first_half") for m, _ in weights)
        complete = plain and len(list(model.parameters())) == len(slots)
        return cls([(m._modules, dict(m._modules)) for m in modules], modules, slots, complete)

    def hold(self) -> bool:
        return all([now == then for now, then in self.tree])

    def heard(self) -> bool:
        """Does a hook wait for what a module is given or returns? Then each has to be called."""
        return any(
            [m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in self.modules[1:]]
        )

    def weights(self) -> list[Any]:
        """None in the place of one that was taken away."""
        return [parameters.get(name) for parameters, name in self.slots]


class Plan(NamedTuple):
    """What a network consists of. Its weights come in the order of the parts: of the encoder, of each half, of norm and head.

    The encoder of tokens is an embedding (weight,), that of real numbers linear (weight, bias). eps: of the last norm.
    pooled: the head is given the mean over time.
    """

    halves: list[Half]
    eps: float
    tokens: bool
    pooled: bool

    def split(self, weights: Given) -> tuple[Given, list[Given], Given, Given]:
        """The weights of the encoder, of each half, of the norm and of the head."""
        at = 1 if self.tokens else 2
        encoder, inner = weights[:at], []
        for half in self.halves:
            inner.append(weights[at : at + weights_of(half)])
            at += weights_of(half)
        return encoder, inner, weights[at : at + 2], weights[at + 2 :]

    def ordinary(self, x: Tensor, *weights: Tensor) -> Tensor:
        """The same by PyTorch's operations, differentiable as often as they are."""
        encoder, inner, norm, head = self.split(weights)
        features = functional.embedding(x, encoder[0]) if self.tokens else functional.linear(x, *encoder)
        for half, given in zip(self.halves, inner, strict=True):
            features = half.ordinary(features, *given)
        features = functional.layer_norm(features, features.shape[-1:], norm[0], norm[1], self.eps)
        return functional.linear(features.mean(dim=1) if self.pooled else features, *head)


def serves(plan: Plan, places: Places, weights: list[Any], x: Tensor, backend: str) -> bool:
    """May `apply` stand for the ordinary operations here? backend: `train.scan_backend`."""
    if not all([type(w) is nn.Parameter and w.is_cpu and w.dtype is torch.float32 and w.is_contiguous() for w in weights]):
        return False
    if not (
        x.is_cpu and (x.dtype is torch.float32) != plan.tokens and x.dim() == (2 if plan.tokens else 3) and x.is_contiguous()
    ):
        return False
    if not (blocks.serves(backend, weights[0]) and unseen(x)):
        return False
    _, inner, norm, _ = plan.split(tuple(weights))
    if norm[0].shape[0] % halves.WIDTHS or not all([half.small(w) for half, w in zip(plan.halves, inner, strict=True)]):
        return False
    return places.complete and not places.heard()


class Kept(NamedTuple):
    """What the gradient needs: of each half what entered it and what it kept; what entered the norm, and what the norm kept."""

    halves: list[list[Tensor]]
    features: Tensor
    norms: Tensor
    z: Tensor
    pooled: Tensor  # what entered the head, (rows, d_model)


def apply(plan: Plan, x: Tensor, *weights: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The output of the network, and of each half with states those after the last step, without gradients.

    x (batch, length, input_size) or tokens (batch, length), without a gradient; weights as `serves` allows them.
    """
    if not torch.is_grad_enabled():
        return _forward(plan, x, weights)[:2]
    output, *states = _Network.apply(plan, x, *weights)  # type: ignore[no-untyped-call]
    return output, states


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        output, states, ctx.kept = _forward(plan, x, weights)  # nobody else has what is kept
        ctx.plan = plan
        ctx.save_for_backward(x, *weights)
        ctx.mark_non_differentiable(*states)
        return output, *states

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *again(ctx.plan.ordinary, (x, *weights), d_output)
        return None, None, *_gradient(ctx.plan, x, tuple(weights), ctx.kept, d_output)[0]


def _forward(plan: Plan, x: Tensor, weights: Given) -> tuple[Tensor, list[Tensor], Kept]:
    """The output, the states after the last step, and what the gradient needs."""
    encoder, inner, norm, (head, bias) = plan.split(weights)
    if plan.tokens:
        features = functional.embedding(x, encoder[0])
    else:
        features = torch.addmm(encoder[1], x.reshape(-1, x.shape[-1]), encoder[0].t()).view(*x.shape[:-1], -1)
    states, kept = [], []
    for half, given in zip(plan.halves, inner, strict=True):
        y, last, needed = half.forward((features, *given), keep=True)
        if last is not None:
            states.append(last)
        kept.append([features, *needed])
        features = y
    z, norms = halves.normalised(features, (norm[0], norm[1], plan.eps))
    pooled = z.mean(dim=1) if plan.pooled else z.view(-1, z.shape[-1])
    output = torch.addmm(bias, pooled, head.t())
    return output if plan.pooled else output.view(*z.shape[:-1], -1), states, Kept(kept, features, norms, z, pooled)


def _gradient(plan: Plan, x: Tensor, weights: Given, kept: Kept, d_output: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Of the weights; and those of z, of what entered the norm, and of what entered each half, the last one first."""
    encoder, inner, norm, (head, _) = plan.split(weights)
    d_rows = d_output.reshape(-1, head.shape[0])
    found = [torch.mm(d_rows.t(), kept.pooled), d_rows.sum(0)]
    dz = torch.mm(d_rows, head)
    if plan.pooled:
        dz = dz.div_(kept.z.shape[1])[:, None].expand(kept.z.shape).contiguous()
    d_features, d_weight, d_bias = halves.normalised_gradient(kept.features, (norm[0], norm[1], plan.eps), kept.norms, dz)
    found, inward = [d_weight, d_bias, *found], [dz, d_features]
    for half, given, (entered, *needed) in zip(reversed(plan.halves), reversed(inner), reversed(kept.halves), strict=True):
        d_features, *gradients = half.gradient((entered, *given), needed, d_features)
        found = [*gradients, *found]
        inward.append(d_features)
    if plan.tokens:
        return [_of_embedding(d_features, x, encoder[0]), *found], inward
    d_rows, rows = d_features.view(-1, d_features.shape[-1]), x.reshape(-1, x.shape[-1])
    return [torch.mm(d_rows.t(), rows), d_rows.sum(0), *found], inward


def _of_embedding(d_features: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    found: Tensor = torch.ops.aten.embedding_dense_backward.default(d_features, tokens, weight.shape[0], -1, False)
    return found


# ---- a training step, again and again in the same memory ----


class Memory:
    """Room for the steps of a training run, of which each writes where the one before it wrote, its gradients, too.

    While one is `lent`, a network of one node takes its calls from it, and the gradients of its weights go straight into their
    `grad`, from the one `backward` that has to follow before the next call: autograd takes 3 microseconds for each of them, and a
    small network has thirty.
    """

    _thread: ClassVar[Any] = threading.local()

    def __init__(self) -> None:
        self._step: _Step | None = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        before, self._thread.lent = getattr(self._thread, "lent", None), self
        try:
            yield
        finally:
            self._thread.lent = before

    @classmethod
    def at_hand(cls) -> Memory | None:
        return getattr(cls._thread, "lent", None) if torch.is_grad_enabled() else None

    def apply(self, plan: Plan, x: Tensor, *weights: Tensor) -> tuple[Tensor, list[Tensor]]:
        """As the function `apply`; what it returns of states is written over by the next call."""
        if self._step is None or not self._step.fits(plan, x, weights):
            self._step = _Step(plan, x, weights)
        return _Again.apply(self._step, self._step.anchor), self._step.states  # type: ignore[no-untyped-call]


class _Again(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, step: _Step, _anchor: Tensor) -> Tensor:
        ctx.step = step
        return step.forward()

    @staticmethod
    def backward(ctx: Any, d_output: Tensor) -> tuple[None, None]:
        if torch.is_grad_enabled():
            raise RuntimeError("a training step in its own memory has no second derivatives")
        ctx.step.backward(d_output)
        return None, None


class _Step:
    """A step on one batch's address: the calls that it makes, and everything that they read and write."""

    def __init__(self, plan: Plan, x: Tensor, weights: Given) -> None:
        self.plan, self.x, self.weights = plan, x, weights
        self.addresses = [t.data_ptr() for t in (x, *weights)]
        self.anchor = torch.zeros((), requires_grad=True)  # what brings autograd back here
        given = tuple(w.detach() for w in weights)
        with torch.no_grad(), library.recording() as self.forward_calls:
            output, self.states, self.kept = _forward(plan, x, given)
        with torch.no_grad(), library.recording() as self.backward_calls:
            self.gradients, self.inward = _gradient(plan, x, given, self.kept, torch.zeros_like(output))
        encoder, inner, _, (self.head, self.bias) = plan.split(given)
        self.encoder, self.d_encoder = encoder, self.gradients[: len(encoder)]
        _, d_inner, _, self.d_head = plan.split(tuple(self.gradients))
        self.dz, *_, self.d_features = self.inward
        self.d_pooled = torch.empty_like(self.kept.pooled) if plan.pooled else self.dz.view(self.kept.pooled.shape)
        self.rows, self.entered = x.reshape(-1, x.shape[-1]), self.kept.halves[0][0]
        self.maps = [
            (half.map_.in_numpy, given[2].numpy(), kept[1].numpy(), found[2].numpy())
            for half, given, kept, found in zip(plan.halves, inner, self.kept.halves, d_inner, strict=True)
            if isinstance(half, blocks.StateSpace) and half.map_ is not None
        ]

    def fits(self, plan: Plan, x: Tensor, weights: Given) -> bool:
        if x.shape != self.x.shape or plan[1:] != self.plan[1:] or [t.data_ptr() for t in (x, *weights)] != self.addresses:
            return False
        pairs = zip(plan.halves, self.plan.halves, strict=True)
        return all([a is b for half, mine in pairs for a, b in zip(half, mine, strict=True)])

    def forward(self) -> Tensor:
        """The output, in memory of its own."""
        kept, width = self.kept, self.entered.shape[-1]
        with np.errstate(all="ignore"):  # what is not finite goes on as it is
            for formulas, w, lambda_bar, _ in self.maps:
                lambda_bar[...] = formulas.f(w)
        if self.plan.tokens:
            torch.index_select(self.encoder[0], 0, self.x.view(-1), out=self.entered.view(-1, width))
        else:
            torch.addmm(self.encoder[1], self.rows, self.encoder[0].t(), out=self.entered.view(-1, width))
        library.repeat(self.forward_calls)
        if self.plan.pooled:
            torch.mean(kept.z, 1, out=kept.pooled)
        output = torch.addmm(self.bias, kept.pooled, self.head.t())
        return output if self.plan.pooled else output.view(*kept.z.shape[:-1], -1)

    def backward(self, d_output: Tensor) -> None:
        earlier = [None if w.grad is None else w.grad.clone() for w in self.weights]
        d_rows = d_output.reshape(-1, self.head.shape[0])
        torch.mm(d_rows.t(), self.kept.pooled, out=self.d_head[0])
        torch.sum(d_rows, 0, out=self.d_head[1])
        torch.mm(d_rows, self.head, out=self.d_pooled)
        if self.plan.pooled:
            self.dz.copy_(self.d_pooled.div_(self.dz.shape[1])[:, None])
        library.repeat(self.backward_calls)
        with np.errstate(all="ignore"):
            for formulas, w, _, dw in self.maps:
                dw *= formulas.derivative(w)
        if self.plan.tokens:
            self.d_encoder[0].copy_(_of_embedding(self.d_features, self.x, self.encoder[0]))
        else:
            d_rows = self.d_features.view(-1, self.d_features.shape[-1])
            torch.mm(d_rows.t(), self.rows, out=self.d_encoder[0])
            torch.sum(d_rows, 0, out=self.d_encoder[1])
        for weight, gradient, before in zip(self.weights, self.gradients, earlier, strict=True):
            if weight.requires_grad:
                weight.grad = gradient if before is None else before.add_(gradient)
