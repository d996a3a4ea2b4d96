"""Pairs of our layers with layers of transformers: Mamba, Mamba-2, the recurrent block of RecurrentGemma, RWKV-4, and the Gated
DeltaNet of Qwen3-Next."""

from __future__ import annotations

import importlib
import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor

from benchmarks.layers.pair import Pair, give, ours

MODELS = ("mamba", "mamba2", "recurrent_gemma", "rwkv", "qwen3_next")


@cache
def modeling(model: str) -> Any:
    """The module of transformers that implements a model. transformers must not find fla, because fla's Triton kernels fail on
    a CPU."""
    if sys.modules.setdefault("fla", None) is not None:  # type: ignore[arg-type]
        raise RuntimeError("fla is imported: transformers would use its Triton kernels; this must come first")
    importlib.import_module("transformers").logging.set_verbosity_error()
    return importlib.import_module(f"transformers.models.{model}.modeling_{model}")


def configuration(model: str, name: str, **options: Any) -> Any:
    return getattr(importlib.import_module(f"transformers.models.{model}.configuration_{model}"), name)(**options)


def mamba(d_model: int, *, use_mambapy: bool = False) -> Pair:
    module = modeling("mamba")
    layer = ours("mamba", d_model)
    options = {"hidden_size": d_model, "state_size": layer.w.shape[1], "num_hidden_layers": 1, "use_mambapy": use_mambapy}
    theirs = module.MambaMixer(configuration("mamba", "MambaConfig", **options), 0)
    weights = {
        theirs.in_proj.weight: torch.cat([layer.in_x.weight, layer.in_z.weight]),
        theirs.conv1d.weight: layer.conv.weight,
        theirs.conv1d.bias: layer.conv.bias,
        theirs.x_proj.weight: layer.x_proj.weight,
        theirs.dt_proj.weight: layer.dt_proj.weight,
        theirs.dt_proj.bias: layer.dt_proj.bias,
        theirs.A_log: layer.w,
        theirs.D: layer.D,
        theirs.out_proj.weight: layer.out_proj.weight,
    }
    return Pair(layer, theirs, theirs, give(theirs, weights))


def mamba2(d_model: int, **options: int) -> Pair:
    module = modeling("mamba2")
    layer = ours("mamba2", d_model, **options)
    heads, inner = len(layer.w), layer.out_proj.in_features
    sizes = {"state_size": layer.d_state, "num_heads": heads, "head_dim": inner // heads, "n_groups": layer.n_groups}
    settings = {"hidden_size": d_model, "expand": inner // d_model, "num_hidden_layers": 1, "layer_norm_epsilon": 1e-5}
    theirs = module.Mamba2Mixer(configuration("mamba2", "Mamba2Config", **settings, **sizes, chunk_size=64), 0)
    weights = {
        theirs.in_proj.weight: torch.cat([layer.in_z.weight, layer.in_xbc.weight, layer.in_dt.weight]),
        theirs.conv1d.weight: layer.conv.weight,
        theirs.conv1d.bias: layer.conv.bias,
        theirs.dt_bias: layer.dt_bias,
        theirs.A_log: layer.w,
        theirs.D: layer.D,
        theirs.norm.weight: layer.norm.weight,
        theirs.out_proj.weight: layer.out_proj.weight,
    }
    return Pair(layer, theirs, theirs, give(theirs, weights))


def rg_lru(d_model: int) -> Pair:
    module = modeling("recurrent_gemma")
    layer = ours("rg_lru", d_model)
    heads = layer.gate_weight.shape[1]
    sizes = {"hidden_size": d_model, "lru_width": len(layer.w), "num_attention_heads": heads, "num_key_value_heads": heads}
    theirs = module.RecurrentGemmaRecurrentBlock(
        configuration("recurrent_gemma", "RecurrentGemmaConfig", num_hidden_layers=3, **sizes), 0
    )
    unit = theirs.rg_lru
    weights = {
        theirs.linear_x.weight: layer.in_x.weight,
        theirs.linear_x.bias: layer.in_x.bias,
        theirs.linear_y.weight: layer.in_y.weight,
        theirs.linear_y.bias: layer.in_y.bias,
        theirs.linear_out.weight: layer.out_proj.weight,
        theirs.linear_out.bias: layer.out_proj.bias,
        theirs.conv_1d.weight: layer.conv.weight,
        theirs.conv_1d.bias: layer.conv.bias,
        unit.recurrent_param: layer.w,
        unit.recurrent_gate_weight: layer.gate_weight[0],
        unit.recurrent_gate_bias: layer.gate_bias[0],
        unit.input_gate_weight: layer.gate_weight[1],
        unit.input_gate_bias: layer.gate_bias[1],
    }

    def call(x: Tensor) -> Tensor:
        y: Tensor = theirs(x, torch.arange(x.shape[1]).expand(len(x), -1), None, use_cache=False)[0]
        return y

    return Pair(layer, theirs, call, give(theirs, weights))


def rwkv4(d_model: int) -> Pair:
    module = modeling("rwkv")
    layer = ours("rwkv4", d_model)
    theirs = module.RwkvSelfAttention(configuration("rwkv", "RwkvConfig", hidden_size=d_model, num_hidden_layers=2))
    weights = {
        theirs.time_decay: layer.w,
        theirs.time_first: layer.u,
        theirs.time_mix_key: layer.mix_k,
        theirs.time_mix_value: layer.mix_v,
        theirs.time_mix_receptance: layer.mix_r,
        theirs.key.weight: layer.key.weight,
        theirs.value.weight: layer.value.weight,
        theirs.receptance.weight: layer.receptance.weight,
        theirs.output.weight: layer.output.weight,
    }
    return Pair(layer, theirs, lambda x: theirs(x)[0], give(theirs, weights))


def gated_deltanet(d_model: int, **options: int) -> Pair:
    module = modeling("qwen3_next")
    layer = ours("gated_deltanet", d_model, **options)
    heads, (keys, _, values) = len(layer.w), layer.widths
    sizes = {"linear_num_key_heads": heads, "linear_num_value_heads": heads}
    widths = {"linear_key_head_dim": keys // heads, "linear_value_head_dim": values // heads}
    settings = {"hidden_size": d_model, "num_hidden_layers": 1, "layer_types": ["linear_attention"], "rms_norm_eps": 1e-5}
    theirs = module.Qwen3NextGatedDeltaNet(configuration("qwen3_next", "Qwen3NextConfig", **settings, **sizes, **widths), 0)
    q, k, v = torch.split(layer.in_qkv.weight, layer.widths)
    by_head = [part.unflatten(0, (heads, -1)) for part in (q, k, v, layer.in_gate.weight)]
    weights = {
        theirs.in_proj_qkvz.weight: torch.cat(by_head, 1),
        theirs.in_proj_ba.weight: torch.stack([layer.in_beta.weight, layer.in_dt.weight], 1),
        theirs.conv1d.weight: layer.conv.weight,
        theirs.dt_bias: layer.dt_bias,
        theirs.A_log: layer.w,
        theirs.norm.weight: layer.norm.weight,
        theirs.out_proj.weight: layer.out_proj.weight,
    }
    return Pair(layer, theirs, theirs, give(theirs, weights))
