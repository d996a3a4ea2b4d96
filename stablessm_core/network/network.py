"""A whole small network on a CPU as one node of autograd's graph, because in a short step the graph takes most of the time.

    features = encoder(x); each half of each block; norm; for classification the mean over time; head

The kernels of `small_blocks` compute the halves and the norm, one after the other. PyTorch computes the encoder, the mean and the
head. `step_buffers` repeats the calls of a training step in the same memory.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.network import blocks, small_blocks
from stablessm_core.network.blocks import Half, Inputs, differentiable_gradients, weight_count
from stablessm_core.scan.autograd import is_unobserved

MAX_FEATURES = 1 << 19  # maximum number of features; with more features, one node per half is as fast and frees memory earlier


class WeightSlots(NamedTuple):
    """The modules and names of a network's weights, valid until a module is replaced. This saves a search at each step."""

    tree: list[tuple[dict[str, Any], dict[str, Any]]]  # each module's dictionary of submodules, with a copy
    modules: list[nn.Module]
    slots: list[tuple[dict[str, Any], str]]
    complete: bool  # True if `slots` contains every weight of the network, and all modules of weights have the expected types

    @classmethod
    def find(cls, model: nn.Module, weights: list[tuple[nn.Module, str]]) -> WeightSlots:
        """The slots of the weights. weights: (module, name of the weight in the module) in the order of `Plan`."""
        modules, slots = list(model.modules()), [(m._parameters, name) for m, name in weights]
        plain = all(type(m) in (nn.Embedding, nn.Linear, nn.LayerNorm) or hasattr(m, "first_half") for m, _ in weights)
        complete = plain and len(list(model.parameters())) == len(slots)
        return cls([(m._modules, dict(m._modules)) for m in modules], modules, slots, complete)

    def valid(self) -> bool:
        """True if no module has been replaced since `find`."""
        return all([now == then for now, then in self.tree])

    def has_hooks(self) -> bool:
        """True if a submodule has a forward or backward hook. PyTorch runs hooks only when the submodule itself is called."""
        return any(
            [m._forward_hooks or m._forward_pre_hooks or m._backward_hooks or m._backward_pre_hooks for m in self.modules[1:]]
        )

    def weights(self) -> list[Any]:
        """The weights; None in place of a weight that was removed."""
        return [parameters.get(name) for parameters, name in self.slots]


class Plan(NamedTuple):
    """The parts of a network. The network's weights are in the order of its parts: encoder, each half, norm, head.

    The encoder of tokens is an embedding (weight,); the encoder of real numbers is linear (weight, bias). eps: the eps of the
    last norm. pooled: True if the head receives the mean over time.
    """

    halves: list[Half]
    eps: float
    tokens: bool
    pooled: bool

    def split(self, weights: Inputs) -> tuple[Inputs, list[Inputs], Inputs, Inputs]:
        """The weights of the encoder, of each half, of the norm and of the head."""
        at = 1 if self.tokens else 2
        encoder, inner = weights[:at], []
        for half in self.halves:
            inner.append(weights[at : at + weight_count(half)])
            at += weight_count(half)
        return encoder, inner, weights[at : at + 2], weights[at + 2 :]

    def with_torch(self, x: Tensor, *weights: Tensor) -> Tensor:
        """The output computed with PyTorch's operations, differentiable any number of times."""
        encoder, inner, norm, head = self.split(weights)
        features = functional.embedding(x, encoder[0]) if self.tokens else functional.linear(x, *encoder)
        for half, half_weights in zip(self.halves, inner, strict=True):
            features = half.with_torch(features, *half_weights)
        features = functional.layer_norm(features, features.shape[-1:], norm[0], norm[1], self.eps)
        return functional.linear(features.mean(dim=1) if self.pooled else features, *head)


def can_run(plan: Plan, slots: WeightSlots, weights: list[Any], x: Tensor, backend: str) -> bool:
    """True if `apply` may replace PyTorch's operations for this network and input. backend: `train.scan_backend`."""
    if not all([type(w) is nn.Parameter and w.is_cpu and w.dtype is torch.float32 and w.is_contiguous() for w in weights]):
        return False
    if not (
        x.is_cpu and (x.dtype is torch.float32) != plan.tokens and x.dim() == (2 if plan.tokens else 3) and x.is_contiguous()
    ):
        return False
    if not (blocks.can_run(backend, weights[0]) and is_unobserved(x)):
        return False
    _, inner, norm, _ = plan.split(tuple(weights))
    if norm[0].shape[0] % small_blocks.VECTOR or not all([half.is_small(w) for half, w in zip(plan.halves, inner, strict=True)]):
        return False
    return slots.complete and not slots.has_hooks()


class Saved(NamedTuple):
    """The tensors that the gradient needs: the input and saved tensors of each half and of the norm, and the head's input."""

    halves: list[list[Tensor]]
    features: Tensor
    norms: Tensor
    z: Tensor
    pooled: Tensor  # the input of the head, (rows, d_model)


def apply(plan: Plan, x: Tensor, *weights: Tensor) -> tuple[Tensor, list[Tensor]]:
    """The network's output, and the states of each layer after the last step, which carry no gradient.

    x: (batch, length, input_size) or tokens (batch, length), without a gradient. weights: must be accepted by `can_run`.
    """
    if not torch.is_grad_enabled():
        return run_forward(plan, x, weights)[:2]
    output, *states = _Network.apply(plan, x, *weights)  # type: ignore[no-untyped-call]
    return output, states


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plan: Plan, x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
        output, states, ctx.saved = run_forward(plan, x, weights)  # only this node holds references to the saved tensors
        ctx.plan = plan
        ctx.save_for_backward(x, *weights)
        ctx.mark_non_differentiable(*states)
        return output, *states

    @staticmethod
    def backward(ctx: Any, d_output: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, *weights = ctx.saved_tensors
        if torch.is_grad_enabled():
            return None, *differentiable_gradients(ctx.plan.with_torch, (x, *weights), d_output)
        return None, None, *run_backward(ctx.plan, x, tuple(weights), ctx.saved, d_output)[0]


def run_forward(plan: Plan, x: Tensor, weights: Inputs) -> tuple[Tensor, list[Tensor], Saved]:
    """The output, the states after the last step, and the tensors that the gradient needs."""
    encoder, inner, norm, (head, bias) = plan.split(weights)
    if plan.tokens:
        features = functional.embedding(x, encoder[0])
    else:
        features = torch.addmm(encoder[1], x.reshape(-1, x.shape[-1]), encoder[0].t()).view(*x.shape[:-1], -1)
    states, saved = [], []
    for half, half_weights in zip(plan.halves, inner, strict=True):
        y, last, half_saved = half.forward((features, *half_weights), keep=True)
        if last is not None:
            states.append(last)
        saved.append([features, *half_saved])
        features = y
    z, norms = small_blocks.layer_norm(features, (norm[0], norm[1], plan.eps))
    pooled = z.mean(dim=1) if plan.pooled else z.view(-1, z.shape[-1])
    output = torch.addmm(bias, pooled, head.t())
    return output if plan.pooled else output.view(*z.shape[:-1], -1), states, Saved(saved, features, norms, z, pooled)


def run_backward(plan: Plan, x: Tensor, weights: Inputs, saved: Saved, d_output: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """The gradients of the weights, and the gradients of z, the norm's input and each half's input (last half first)."""
    encoder, inner, norm, (head, _) = plan.split(weights)
    d_rows = d_output.reshape(-1, head.shape[0])
    gradients = [torch.mm(d_rows.t(), saved.pooled), d_rows.sum(0)]
    dz = torch.mm(d_rows, head)
    if plan.pooled:
        dz = dz.div_(saved.z.shape[1])[:, None].expand(saved.z.shape).contiguous()
    d_features, d_weight, d_bias = small_blocks.layer_norm_gradient(saved.features, (norm[0], norm[1], plan.eps), saved.norms, dz)
    gradients, d_inputs = [d_weight, d_bias, *gradients], [dz, d_features]
    for half, half_weights, (half_input, *half_saved) in zip(
        reversed(plan.halves), reversed(inner), reversed(saved.halves), strict=True
    ):
        d_features, *of_half = half.gradient((half_input, *half_weights), half_saved, d_features)
        gradients = [*of_half, *gradients]
        d_inputs.append(d_features)
    if plan.tokens:
        return [embedding_gradient(d_features, x, encoder[0]), *gradients], d_inputs
    d_rows, rows = d_features.view(-1, d_features.shape[-1]), x.reshape(-1, x.shape[-1])
    return [torch.mm(d_rows.t(), rows), d_rows.sum(0), *gradients], d_inputs


def embedding_gradient(d_features: Tensor, tokens: Tensor, weight: Tensor) -> Tensor:
    """The gradient of the embedding's weight."""
    d_weight: Tensor = torch.ops.aten.embedding_dense_backward.default(d_features, tokens, weight.shape[0], -1, False)
    return d_weight
