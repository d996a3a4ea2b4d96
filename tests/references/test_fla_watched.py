"""The real layers of flash-linear-attention, tiny: what `stablessm.watch` finds in them, against formulas written here.

These tests run in a separate process, like those of test_fla.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

from stablessm_core.outside.modules import find_layers
from tests.core.outside.test_real_modules import channels, check, delta, mamba, randomized

layers = pytest.importorskip("fla.layers")

WIDTH: dict[str, Any] = {"hidden_size": 16, "num_heads": 2}
HEADS: dict[str, Any] = {"hidden_size": 16, "num_heads": 8, "head_dim": 4, "state_size": 4, "n_groups": 1}


def heads(m: Any) -> Tensor:
    return torch.exp(-softplus(m.dt_bias).clamp(*m.dt_limit) * torch.exp(m.A_log))


# name of the class -> its arguments, and the factor by which a state decays at a zero input
WATCHED: dict[str, tuple[dict[str, Any], Callable[[Any], Tensor]]] = {
    "Mamba": ({"hidden_size": 16, "state_size": 4}, mamba),
    "Mamba2": (HEADS | {"dt_limit": (0.5, 1.0)}, heads),
    "LogLinearMamba2": (HEADS, heads),
    "GatedLinearAttention": (WIDTH, lambda m: torch.exp(logsigmoid(m.gk_proj[1].bias) / 16)),
    "GatedDeltaNet": (WIDTH | {"head_dim": 4}, delta),
    "GatedDeltaProduct": (WIDTH | {"head_dim": 4}, delta),
    "Comba": (WIDTH | {"head_dim": 4}, delta),
    "KimiDeltaAttention": (WIDTH | {"head_dim": 4}, channels),
    "RWKV6Attention": (WIDTH, lambda m: torch.exp(-torch.exp(m.w_proj.linear.lora[2].bias))),
}


def model_of(name: str, arguments: dict[str, Any]) -> nn.Module:
    return randomized(nn.Sequential(getattr(layers, name)(**arguments)))


@pytest.mark.parametrize("name", WATCHED)
def test_the_eigenvalues_of_each_real_layer_are_those_that_it_computes(name: str) -> None:
    arguments, formula = WATCHED[name]
    model = model_of(name, arguments)
    found = find_layers(model)
    check(found, model, name, formula, 1)
    assert found.sentences == []


@pytest.mark.parametrize(("name", "arguments", "why"), [
    ("MultiScaleRetention", WIDTH, "its decay is a constant"),
    ("DeltaNet", WIDTH, "its state has no decay"),
    ("MesaNet", WIDTH | {"head_dim": 4}, "no parameter holds its eigenvalues"),
])  # fmt: skip
def test_layers_without_eigenvalues_say_so(name: str, arguments: dict[str, Any], why: str) -> None:
    found = find_layers(model_of(name, arguments))
    assert found.layers == []
    assert found.sentences == [f"0 ({name}): nothing to watch here, because {why}"]


@pytest.mark.parametrize(("setting", "value"), [("gate_logit_normalizer", 8), ("clamp_min", -1.0)])
def test_a_gate_with_another_scale_is_refused(setting: str, value: float) -> None:
    found = find_layers(model_of("GatedLinearAttention", WIDTH | {setting: value}))
    assert found.layers == []
    assert f"{setting} is {value}" in found.sentences[0]
