"""Which settings of a module refuse a match by parameter names, because they may choose another map."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import stablessm
from stablessm_core.outside.eigenvalues import UNCONFIRMED
from stablessm_core.outside.modules import find_layers
from tests.core.outside.stand_ins import module

A4, A23, A2 = torch.randn(4), torch.randn(2, 3), torch.randn(2)


class Squash(Enum):
    HARD = "hard"


def heads(**settings: Any) -> nn.Module:
    return module("Unheard", A_log=A4, dt_bias=A4 / 2, **settings)


def diagonal(**settings: Any) -> nn.Module:
    return module("Unheard", log_A_real=A23, A_imag=A23, log_dt=A2, **settings)


CHOOSING: dict[str, Any] = {
    "parameterization": "direct", "reparam": "stable", "eigenvalue_map": "cube", "pole_fn": torch.tanh, "flavour": "softplus",
    "disc_method": "tustin", "discretisation": "bilinear", "use_safe_decay": True, "dt_softplus": False, "A_activation": "relu",
    "a_transform": lambda x: x, "squash": Squash.HARD, "lambda_mode": "learned", "clamp_real": True, "log_space": False,
    "nonlinearity": nn.Softsign(), "kind": "hurwitz", "rate_link": "probit", "forget_form": "sigmoid", "constrained": True,
}  # fmt: skip
ORDINARY: dict[str, Any] = {
    "bias": True, "conv_bias": False, "activation": "silu", "act": nn.SiLU(), "dropout_p": 0.1, "d_state": 16, "causal": True,
    "layer_norm_type": "rms", "init_mode": "random", "use_fast_path": True, "verbose": False, "device_type": "cuda",
    "output_gate": True, "checkpointing": True, "weight_decay_on": False, "backend": "triton", "residual": True,
    "param_count": 12, "transposed": True, "dt_rank": 4, "loss_type": "mse", "softplus": nn.Softplus(),
    "act_fn": nn.functional.gelu,
}  # fmt: skip


@pytest.mark.parametrize("name", CHOOSING)
@pytest.mark.parametrize("make", [heads, diagonal])
def test_a_setting_that_may_choose_another_map_refuses_the_match(make: Callable[..., nn.Module], name: str) -> None:
    found = find_layers(nn.Sequential(make(**{name: CHOOSING[name]})))
    assert found.layers == []
    (sentence,) = found.sentences
    assert sentence.startswith(f"0 (Unheard): {name} is ")
    assert "Declare its map with layers=" in sentence
    assert found.unwatched


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_setting_does_not(name: str) -> None:
    (layer,) = find_layers(nn.Sequential(heads(**{name: ORDINARY[name]}))).layers
    assert layer.eigenvalues.note == UNCONFIRMED


def test_a_setting_that_says_what_is_assumed_does_not() -> None:
    made = diagonal(real_transform="exp", dt_transform="exp", discretization="zoh")
    assert len(find_layers(made).layers) == 1
    assert len(find_layers(heads(dt_softplus=True, dt_activation="softplus")).layers) == 1


def test_settings_of_the_configuration_and_of_the_class_count() -> None:
    configured = heads()
    configured.config = SimpleNamespace(hidden_act="relu", model_type="ssm", decay_transform="tanh")
    of_class: Any = heads()
    type(of_class).discretization = "euler"
    for made, setting in ((configured, "decay_transform is 'tanh'"), (of_class, "discretization is 'euler'")):
        found = find_layers(made)
        assert found.layers == []
        assert setting in found.sentences[0]


def test_a_known_class_of_another_package_is_refused_too() -> None:
    made = module("Mamba2", A_log=A4, dt_bias=A4, decay_fn=torch.sigmoid)
    found = find_layers(made)
    assert (found.layers, "decay_fn is sigmoid" in found.sentences[0]) == ([], True)


def test_a_declared_map_is_recorded_in_spite_of_the_setting() -> None:
    declared = {"*.log_A_real": stablessm.eigenvalues("softplus", "continuous", step="exp(log_dt)", imag="A_imag")}
    found = find_layers(nn.Sequential(diagonal(parameterization="softplus")), declared)
    assert [layer.eigenvalues.form.map for layer in found.layers] == ["softplus"]
    assert (found.sentences, found.unwatched) == ([], [])


class Delta(nn.Module):
    """A gated delta rule whose keys are not normalised."""

    def __init__(self) -> None:
        super().__init__()
        self.A_log, self.dt_bias = nn.Parameter(A4.clone()), nn.Parameter(A4.clone())
        self.k_proj, self.b_proj = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.k_proj(x) * self.b_proj(x)


def test_a_delta_rule_that_is_matched_by_name_says_that_the_decay_is_not_the_spectrum() -> None:
    (layer,) = find_layers(Delta()).layers
    assert layer.eigenvalues.note is not None
    assert layer.eigenvalues.note.startswith(UNCONFIRMED)
    assert "the write strength beta turns the state too" in layer.eigenvalues.note
