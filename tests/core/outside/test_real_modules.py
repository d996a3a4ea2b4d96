"""The real classes of transformers, tiny: what is found in each model, and the eigenvalues against formulas written here."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from stablessm_core.outside.eigenvalues import AT_GATE_ZERO, UNCONFIRMED
from stablessm_core.outside.modules import Found, find_layers
from tests.core.outside.test_modules import lambda_bar

pytestmark = pytest.mark.slow  # importing so many models takes several seconds

SMALL = {
    "vocab_size": 16, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2,
    "num_key_value_heads": 1, "head_dim": 8, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
HEADS = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_d_state": 4, "mamba_n_groups": 1}
LINEAR = {"linear_num_value_heads": 4, "linear_num_key_heads": 4, "linear_key_head_dim": 4, "linear_value_head_dim": 4}
EXPERTS = {"num_experts": 2, "num_experts_per_tok": 1, "moe_intermediate_size": 8, "shared_expert_intermediate_size": 8}
HYBRID = {"layers_block_type": ["mamba", "hybrid"]}
MIXED = {"layer_types": ["linear_attention", "full_attention"]}


def mamba(m: Any) -> Tensor:
    """A_log (d, n) and the bias of dt_proj (d)."""
    return torch.exp(-softplus(m.dt_proj.bias)[:, None] * torch.exp(m.A_log))


def zamba(m: Any) -> Tensor:
    """A_log (heads, d, n) and dt_proj_bias (heads, d)."""
    return torch.exp(-softplus(m.dt_proj_bias)[..., None] * torch.exp(m.A_log))


def heads(m: Any) -> Tensor:
    """A_log and dt_bias (heads), with the step size in the limits of the module."""
    return torch.exp(-softplus(m.dt_bias).clamp(*m.time_step_limit) * torch.exp(m.A_log))


def delta(m: Any) -> Tensor:
    return torch.exp(-torch.exp(m.A_log) * softplus(m.dt_bias))


def channels(m: Any) -> Tensor:
    """A_log with one value for each head, dt_bias with one for each head and channel."""
    rate = torch.exp(m.A_log.flatten())[:, None]
    return torch.exp(-rate * softplus(m.dt_bias.view(m.A_log.numel(), -1)))


def rg_lru(m: Any) -> Tensor:
    gate = torch.sigmoid(m.recurrent_gate_bias.flatten())
    return torch.exp(-8 * gate * softplus(m.recurrent_param))


def rwkv(m: Any) -> Tensor:
    return torch.exp(-torch.exp(m.time_decay))


def xlstm(m: Any) -> Tensor:
    return torch.sigmoid(15 * torch.tanh(m.fgate_preact.bias / 15))


Case = tuple[dict[str, Any], str, Callable[[Any], Tensor], int]
# model -> settings, the class with eigenvalues, their formula, how many layers have them
WATCHED: dict[str, Case] = {
    "mamba": ({"state_size": 4}, "MambaMixer", mamba, 2),
    "falcon_mamba": ({"state_size": 4}, "FalconMambaMixer", mamba, 2),
    "jamba": ({"mamba_d_state": 4, "mamba_dt_rank": 2, "num_experts": 1}, "JambaMambaMixer", mamba, 2),
    "zamba": (
        {"mamba_d_state": 4, "mamba_dt_rank": 2, "n_mamba_heads": 2, "layers_block_type": ["mamba", "mamba"]},
        "ZambaMambaMixer", zamba, 2,
    ),
    "mamba2": ({"num_heads": 4, "state_size": 4, "n_groups": 1, "time_step_limit": (0.5, 1.5)}, "Mamba2Mixer", heads, 2),
    "bamba": (HEADS | {"attn_layer_indices": [1]}, "BambaMixer", heads, 1),
    "zamba2": (
        {"mamba_d_state": 4, "n_mamba_heads": 4, "mamba_headdim": 8, "mamba_ngroups": 1, **HYBRID},
        "Zamba2MambaMixer", heads, 2,
    ),
    "falcon_h1": (HEADS | {"mamba_d_ssm": 32}, "FalconH1Mixer", heads, 2),
    "nemotron_h": (
        {"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 4, "n_groups": 1, "hybrid_override_pattern": "M*"},
        "NemotronHMamba2Mixer", heads, 1,
    ),
    "granitemoehybrid": (HEADS | {"layer_types": ["mamba", "attention"]}, "GraniteMoeHybridMambaLayer", heads, 1),
    "qwen3_next": (LINEAR | EXPERTS | MIXED, "Qwen3NextGatedDeltaNet", delta, 1),
    "qwen3_5_text": (LINEAR | MIXED, "Qwen3_5GatedDeltaNet", delta, 1),
    "qwen3_5_moe_text": (LINEAR | EXPERTS | MIXED, "Qwen3_5MoeGatedDeltaNet", delta, 1),
    "lara_mini": (LINEAR | EXPERTS, "LaraMiniGatedDeltaNet", delta, 1),
    "olmo_hybrid": (LINEAR | MIXED, "OlmoHybridGatedDeltaNet", delta, 1),
    "kimi_linear": (
        {"linear_num_heads": 2, "linear_head_dim": 4, "num_experts": 2, "moe_intermediate_size": 8, "kv_lora_rank": 8},
        "KimiLinearForgetGate", channels, 2,
    ),
    "bailing_hybrid": ({"kda_safe_gate": False}, "BailingHybridForgetGate", channels, 2),
    "recurrent_gemma": ({"lru_width": 16, "block_types": ("recurrent", "attention")}, "RecurrentGemmaRglru", rg_lru, 1),
    "rwkv": ({"attention_hidden_size": 16}, "RwkvSelfAttention", rwkv, 2),
    "xlstm": ({"num_heads": 2, "embedding_dim": 16}, "xLSTMLayer", xlstm, 2),
}  # fmt: skip


def built(name: str, settings: dict[str, Any]) -> nn.Module:
    """A model with random weights. It is built without memory first, because its own initialisation takes long."""
    transformers = pytest.importorskip("transformers")
    config = transformers.AutoConfig.for_model(name, **{**SMALL, **settings})
    with torch.device("meta"):
        model: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
    return randomized(model)


def randomized(model: nn.Module) -> nn.Module:
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


def check(found: Found, model: nn.Module, name: str, formula: Callable[[Any], Tensor], count: int) -> None:
    modules = [module for module in model.modules() if type(module).__name__ == name]
    assert [layer.name for layer in found.layers] == [name] * count
    assert len(modules) == count
    for layer, module in zip(found.layers, modules, strict=True):
        with torch.no_grad():
            expected = formula(module).flatten().numpy()
        np.testing.assert_allclose(lambda_bar(layer.eigenvalues), expected, rtol=1e-5, atol=1e-30)
        assert layer.eigenvalues.note != UNCONFIRMED


@pytest.mark.parametrize("name", WATCHED)
def test_the_eigenvalues_of_each_real_class_are_those_that_it_computes(name: str) -> None:
    settings, class_name, formula, count = WATCHED[name]
    model = built(name, settings)
    found = find_layers(model)
    check(found, model, class_name, formula, count)
    assert found.sentences == []


def test_the_step_sizes_of_a_real_mamba2_reach_both_limits() -> None:
    (layer, _) = find_layers(built("mamba2", WATCHED["mamba2"][0])).layers
    step = layer.eigenvalues.step
    assert step is not None
    dt = step.compute(torch.tensor([[-9.0, 0.6, 9.0]]))
    assert dt[0].tolist() == [0.5, softplus(torch.tensor(0.6)).item(), 1.5]
    assert layer.eigenvalues.note == AT_GATE_ZERO


def test_the_gated_delta_rule_of_qwen4_is_found() -> None:
    module = pytest.importorskip("transformers.models.qwen4_exp.modeling_qwen4_exp")
    config = module.Qwen4ExpTextConfig(**SMALL, **LINEAR, **EXPERTS)
    with torch.device("meta"):
        model = nn.Sequential(module.Qwen4ExpTextGatedDeltaNet(config, 0))
    check(find_layers(randomized(model)), model, "Qwen4ExpTextGatedDeltaNet", delta, 1)


def test_a_lower_bound_on_the_decay_is_refused_in_the_real_classes() -> None:
    found = find_layers(built("bailing_hybrid", {"kda_safe_gate": True}))
    assert found.layers == []
    assert len(found.sentences) == 2
    assert all("is set, which changes what A_log means" in sentence for sentence in found.sentences)


@pytest.mark.parametrize(("bound", "watched"), [(-5.0, 0), (None, 1)])
def test_the_forget_gate_of_glm5_is_watched_only_without_a_lower_bound(bound: float | None, watched: int) -> None:
    module = pytest.importorskip("transformers.models.glm5_next.modeling_glm5_next")
    config = SimpleNamespace(hidden_size=16, linear_num_heads=2, linear_head_dim=4, linear_lower_bound=bound)
    with torch.device("meta"):
        model = nn.Sequential(module.Glm5NextTextForgetGate(config))
    found = find_layers(randomized(model))
    assert len(found.layers) == watched
    if watched:
        check(found, model, "Glm5NextTextForgetGate", channels, 1)
    else:
        assert "safe_gate_lower_bound is set" in found.sentences[0]


@pytest.mark.parametrize(("name", "settings", "why"), [
    ("minimax", {"num_local_experts": 2, **MIXED}, "its decay is a fixed buffer"),
    ("lfm2", {"layer_types": ["conv", "full_attention"]}, "a short convolution has no eigenvalues"),
    ("lfm3", {}, "a short convolution has no eigenvalues"),
])  # fmt: skip
def test_a_model_without_eigenvalues_says_so(name: str, settings: dict[str, Any], why: str) -> None:
    found = find_layers(built(name, settings))
    assert found.layers == []
    assert found.sentences
    assert all("nothing to watch here" in sentence and why in sentence for sentence in found.sentences)
