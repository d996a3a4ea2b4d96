"""Pairs of our layers with layers of flash-linear-attention on a CPU: RetNet, GLA, HGRN, RWKV-6, Gated DeltaNet.

The layers of flash-linear-attention (fla) run Triton kernels. This module replaces each kernel with the PyTorch function that
fla tests the kernel against. fla has no such function for SiLU, for the product with SiLU and for the short convolution, so
PyTorch operations replace these kernels. Importing fla takes seconds.
"""

from __future__ import annotations

import sys
import warnings
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.layers.pair import Pair, give, ours


@cache
def layers() -> Any:
    """The module fla.layers, with PyTorch functions instead of Triton kernels."""
    if "fla" in sys.modules and sys.modules["fla"] is None:  # of_transformers sets None so that transformers cannot import fla
        del sys.modules["fla"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = import_module("fla.layers")
    replacements = {
        "fla.layers.multiscale_retention": {"chunk_retention": _retention},
        "fla.layers.gla": {"chunk_gla": _gla, "fused_recurrent_gla": _gla},
        "fla.layers.hgrn": {"chunk_hgrn": _hgrn, "swiglu": lambda x, y: functional.silu(x) * y},
        "fla.layers.rwkv6": {
            "chunk_rwkv6": _rwkv6,
            "fused_recurrent_rwkv6": _rwkv6,
            "token_shift": import_module("fla.modules.token_shift").token_shift_ref,
        },
        "fla.layers.gated_deltanet": {"chunk_gated_delta_rule": _gated_delta_rule, "causal_conv1d": _causal_conv1d},
        "fla.modules.rotary.ops": {"rotary_embedding": _rotary_embedding},
        "fla.modules.norm.fused_norm_gate": {"rms_norm_gated": _rms_norm_gated},
        "fla.modules.norm.layernorm": {"group_norm": _group_norm},
    }
    for module, functions in replacements.items():
        for name, function in functions.items():
            if not hasattr(import_module(module), name):
                raise AttributeError(f"{module} has no {name} any more")
            setattr(import_module(module), name, function)
    return package


def retnet(d_model: int) -> Pair:
    layer = ours("retnet", d_model)
    heads, expand = len(layer.decay), layer.o_proj.in_features // d_model
    theirs = layers().MultiScaleRetention(hidden_size=d_model, num_heads=heads, expand_v=expand)
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, _projections(theirs, layer)))


def gla(d_model: int) -> Pair:
    layer = ours("gla", d_model)
    theirs = layers().GatedLinearAttention(hidden_size=d_model, num_heads=layer.n_heads)
    gate_in, gate_out = theirs.gk_proj
    weights = _projections(theirs, layer) | {
        gate_in.weight: layer.gate_in.weight,
        gate_out.weight: layer.gate_out.weight,
        gate_out.bias: layer.gate_out.bias,
    }
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, weights))


def hgrn(d_model: int) -> Pair:
    """The pair for HGRN. The published model computes the lower bounds of all layers' gates from one matrix. This pair passes
    our layer's lower bound to the public layer instead."""
    layer = ours("hgrn", d_model)
    theirs = layers().HGRNAttention(hidden_size=d_model, norm_eps=layer.norm.eps, layer_idx=1)
    weights = {
        theirs.i_proj.weight: layer.input.weight,
        theirs.f_proj.weight: layer.forget.weight,
        theirs.g_proj.weight: layer.gate.weight,
        theirs.g_norm.weight: layer.norm.weight,
        theirs.o_proj.weight: layer.output.weight,
    }
    given = give(theirs, weights) | {layer.gamma: layer.gamma}
    return Pair(layer, theirs, lambda x: theirs(x, lower_bound=layer.lower_bound())[0], given)


def rwkv6(d_model: int) -> Pair:
    layer = ours("rwkv6", d_model)
    ranks = {"proj_low_rank_dim": layer.mix_up.shape[1], "gate_low_rank_dim": layer.decay_up.shape[1]}
    heads = d_model // layer.head_size
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # fla warns that RWKV's authors recommend their own implementation
        theirs = layers().RWKV6Attention(
            hidden_size=d_model, expand_k=1.0, num_heads=heads, norm_eps=layer.norm.eps, layer_idx=1, **ranks
        )
    theirs.gate_fn = functional.silu
    order = [3, 0, 1, 2, 4]  # fla stores the parts in the order r, w, k, v, g, our layer in the order w, k, v, r, g
    low_rank, _, up = theirs.x_proj
    decay_down, _, decay_up = theirs.w_proj.linear.lora
    weights = {
        theirs.x_bias: layer.mix[order],
        theirs.bonus: layer.u,
        low_rank.mu: layer.mix_x,
        low_rank.linear.weight: layer.mix_down.weight.unflatten(0, (5, -1))[order].flatten(0, 1),
        up.weight: layer.mix_up[order].permute(2, 0, 1).flatten(1),
        theirs.r_proj.linear.weight: layer.receptance.weight,
        theirs.k_proj.linear.weight: layer.key.weight,
        theirs.v_proj.linear.weight: layer.value.weight,
        theirs.g_proj.linear.weight: layer.gate.weight,
        decay_down.weight: layer.decay_down.weight,
        decay_up.weight: layer.decay_up,
        decay_up.bias: layer.w,
        theirs.g_norm.weight: layer.norm.weight,
        theirs.g_norm.bias: layer.norm.bias,
        theirs.o_proj.weight: layer.output.weight,
    }
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, weights))


def gated_deltanet(d_model: int, **options: Any) -> Pair:
    layer = ours("gated_deltanet", d_model, **options)
    heads, (keys, _, values) = len(layer.w), layer.widths
    sizes = {"num_heads": heads, "head_dim": keys // heads, "expand_v": values / keys}
    theirs = layers().GatedDeltaNet(hidden_size=d_model, allow_neg_eigval=layer.largest_beta == 2, **sizes)
    q, k, v = torch.split(layer.in_qkv.weight, layer.widths)
    of_q, of_k, of_v = torch.split(layer.conv.weight, layer.widths)
    weights = {
        theirs.q_proj.weight: q,
        theirs.k_proj.weight: k,
        theirs.v_proj.weight: v,
        theirs.q_conv1d.weight: of_q,
        theirs.k_conv1d.weight: of_k,
        theirs.v_conv1d.weight: of_v,
        theirs.a_proj.weight: layer.in_dt.weight,
        theirs.b_proj.weight: layer.in_beta.weight,
        theirs.dt_bias: layer.dt_bias,
        theirs.A_log: layer.w,
        theirs.g_proj.weight: layer.in_gate.weight,
        theirs.o_norm.weight: layer.norm.weight,
        theirs.o_proj.weight: layer.out_proj.weight,
    }
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, weights))


def _projections(theirs: Any, layer: Any) -> dict[Any, Tensor]:
    shared = {
        getattr(theirs, name).weight: getattr(layer, name).weight for name in ("q_proj", "k_proj", "v_proj", "g_proj", "o_proj")
    }
    return shared | {theirs.g_norm_swish_gate.weight: layer.norm.weight}


def _retention(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> tuple[Tensor, None]:
    naive = import_module("fla.ops.retention.naive").naive_retention
    return naive(*(part.transpose(1, 2) for part in (q, k, v))).transpose(1, 2), None


def _gla(q: Tensor, k: Tensor, v: Tensor, g: Tensor | None = None, gk: Tensor | None = None, **_: Any) -> tuple[Tensor, None]:
    o: tuple[Tensor, None] = import_module("fla.ops.gla.naive").naive_recurrent_gla(q, k, v, gk if g is None else g)
    return o


def _hgrn(x: Tensor, g: Tensor, **_: Any) -> tuple[Tensor, None]:
    o: tuple[Tensor, None] = import_module("fla.ops.hgrn.naive").naive_recurrent_hgrn(x, g)
    return o


def _rwkv6(r: Tensor, k: Tensor, v: Tensor, w: Tensor, u: Tensor, scale: float, **_: Any) -> tuple[Tensor, None]:
    naive = import_module("fla.ops.rwkv6.recurrent_naive").naive_recurrent_rwkv6
    return naive(*(part.transpose(1, 2) for part in (r, k, v, w)), u, scale=scale)[0].transpose(1, 2), None


def _gated_delta_rule(
    q: Tensor, k: Tensor, v: Tensor, g: Tensor, beta: Tensor, *, A_log: Tensor, dt_bias: Tensor, allow_neg_eigval: bool, **_: Any
) -> tuple[Tensor, None]:
    operators = import_module("fla.ops.gated_delta_rule.naive")
    g = import_module("fla.ops.gated_delta_rule.gate").naive_gdn_gate(g, A_log, dt_bias)
    beta = beta.sigmoid() * (2 if allow_neg_eigval else 1)
    q, k = (part * torch.rsqrt(part.square().sum(-1, keepdim=True) + 1e-6) for part in (q, k))
    o: tuple[Tensor, None] = operators.naive_chunk_gated_delta_rule(q, k, v, g=g, beta=beta)
    return o


def _causal_conv1d(x: Tensor, weight: Tensor, activation: str, **_: Any) -> tuple[Tensor, None]:
    assert activation == "silu"
    channels, taps = weight.shape
    padded = functional.pad(x.transpose(1, 2), (taps - 1, 0))
    return functional.silu(functional.conv1d(padded, weight[:, None], groups=channels)).transpose(1, 2), None


def _rotary_embedding(x: Tensor, cos: Tensor, sin: Tensor, *, interleaved: bool, **_: Any) -> Tensor:
    length = x.shape[1]
    turned: Tensor = import_module("fla.modules.rotary.ops").rotary_embedding_ref(x, cos[:length], sin[:length], interleaved)
    return turned


def _rms_norm_gated(x: Tensor, g: Tensor, weight: Tensor, *, activation: str, eps: float, **_: Any) -> Tensor:
    assert activation == "swish"
    normed: Tensor = import_module("fla.modules.norm.layernorm").rms_norm_ref(x, weight, None, eps=eps)
    return normed * functional.silu(g)


def _group_norm(x: Tensor, weight: Tensor, bias: Tensor, *, num_groups: int, eps: float, **_: Any) -> Tensor:
    normed: Tensor = import_module("fla.modules.norm.layernorm").group_norm_ref(x, weight, bias, num_groups, eps=eps)
    return normed
