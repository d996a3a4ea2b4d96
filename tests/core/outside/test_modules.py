"""The table of foreign modules: each is found on a stand-in with the real names and shapes, with the right eigenvalues."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

import stablessm
from stablessm_core.outside.eigenvalues import UNCONFIRMED, Eigenvalues
from stablessm_core.outside.modules import find_layers
from stablessm_core.outside.tables import CLASSES, DELTA_NETS, HEADS
from stablessm_core.telemetry.forms import GATES, spread
from tests.core.outside.stand_ins import Mamba2Mixer, MambaMixer, module

torch.manual_seed(0)
A12, A3, A4, A24 = torch.randn(12), torch.randn(3), torch.randn(4), torch.rand(2, 4) + 0.5


def lambda_bar(found: Eigenvalues) -> np.ndarray:
    """|lambda_bar| of each eigenvalue, as the charts compute it."""
    weight = found.weight.detach()
    if found.pairs:
        pairs = torch.view_as_real(weight) if weight.is_complex() else weight
        recorded = {"weight": pairs[..., 0].flatten(), "phase_weight": pairs[..., 1].flatten()}
    else:
        recorded = {"weight": weight.flatten().repeat_interleave(found.repeat)}
        if found.imag is not None:
            recorded["phase_weight"] = found.imag.detach().flatten()
    if found.step is not None:
        steps = found.step.compute(found.step.weight.detach().reshape(1, -1).float())[0]
        recorded |= dict.fromkeys(GATES, steps) if found.form.gate else {"dt": steps}
    plain = spread({k: v.float().numpy()[None] for k, v in recorded.items()}, found.width)
    return found.form.derive("eigenvalue", plain)[0]


def exp_decay(w: Tensor, dt: Tensor) -> Tensor:
    return torch.exp(-dt * torch.exp(w))


def mamba(name: str) -> tuple[nn.Module, Tensor]:
    w, b = torch.randn(3, 4), torch.randn(3)
    return module(name, A_log=w, dt_proj__bias=b), exp_decay(w, softplus(b)[:, None])


def heads(name: str) -> tuple[nn.Module, Tensor]:
    return module(name, A_log=A4, dt_bias=A4 / 2), exp_decay(A4, softplus(A4 / 2))


def zamba() -> tuple[nn.Module, Tensor]:
    w, b = torch.randn(2, 3, 4), torch.randn(2, 3)
    return module("ZambaMambaMixer", A_log=w, dt_proj_bias=b), exp_decay(w, softplus(b)[..., None])


def kda(name: str, *shape: int) -> tuple[nn.Module, Tensor]:
    w, b = torch.randn(3), torch.randn(12)
    return module(name, A_log=w.view(shape or (3,)), dt_bias=b), exp_decay(w.repeat_interleave(4), softplus(b))


def rg_lru() -> tuple[nn.Module, Tensor]:
    w, b = torch.randn(6), torch.randn(2, 3)
    gate = torch.sigmoid(b.flatten())
    return module("RecurrentGemmaRglru", recurrent_param=w, recurrent_gate_bias=b), torch.exp(-8 * gate * softplus(w))


def s4d() -> tuple[nn.Module, Tensor]:
    w, imag, dt = torch.randn(2, 3), torch.randn(2, 3), torch.randn(2)
    return module("S4DKernel", log_A_real=w, A_imag=imag, log_dt=dt), exp_decay(w, dt.exp()[:, None])


def s4(transform: str) -> tuple[nn.Module, Tensor]:
    w, imag, dt = torch.randn(2, 3), torch.randn(2, 3), torch.randn(2, 1)
    made = module("SSMKernelDiag", A_real=w, A_imag=imag, inv_dt=dt, real_transform=transform, dt_transform="exp")
    rate = torch.exp(w) if transform == "exp" else softplus(w)
    return made, torch.exp(-dt.exp() * rate)


def s5() -> tuple[nn.Module, Tensor]:
    w, step = torch.complex(-torch.rand(5) - 0.1, torch.randn(5)), torch.randn(5, 1)
    made = nn.Module()
    made.seq = module("S5SSM", Lambda=w, log_step=step)
    return made, torch.exp(w * step.flatten().exp()).abs()


def s5_halves() -> tuple[nn.Module, Tensor]:
    re, im, step = -torch.rand(5) - 0.1, torch.randn(5), torch.randn(5, 1)
    return module("SSMLayer", Lambda_re=re, Lambda_im=im, log_step=step), torch.exp(re * step.flatten().exp())


EVERY = {
    **{name: (lambda name=name: mamba(name)) for name in ("MambaMixer", "FalconMambaMixer", "JambaMambaMixer", "Mamba")},
    "ZambaMambaMixer": zamba,
    **{name: (lambda name=name: heads(name)) for name in (HEADS + DELTA_NETS).split()},
    "KimiLinearForgetGate": lambda: kda("KimiLinearForgetGate", 1, 1, 3, 1),
    **{
        name: (lambda name=name: kda(name))
        for name in ("KimiDeltaAttention", "BailingHybridForgetGate", "Glm5NextTextForgetGate")
    },
    "RecurrentGemmaRglru": rg_lru,
    "RwkvSelfAttention": lambda: (module("RwkvSelfAttention", time_decay=A12, time_first=A12), torch.exp(-torch.exp(A12))),
    "RWKV6Attention": lambda: (module("RWKV6Attention", w_proj__linear__lora__2__bias=A4), torch.exp(-torch.exp(A4))),
    "mLSTMLayer": lambda: (module("mLSTMLayer", fgate_preact__bias=20 * A3), torch.sigmoid(15 * torch.tanh(20 * A3 / 15))),
    "GatedLinearAttention": lambda: (module("GatedLinearAttention", gk_proj__1__bias=A4), torch.exp(logsigmoid(A4) / 16)),
    "S4DKernel": s4d,
    "SSMKernelDiag, exp": lambda: s4("exp"),
    "SSMKernelDiag, softplus": lambda: s4("softplus"),
    "S5SSM": s5,
    "S5 in halves": s5_halves,
    "LRU": lambda: (module("LRU", nu_log=A4, theta_log=A4), torch.exp(-torch.exp(A4))),
    "S7": lambda: (module("S7", base_params=A4), 1 - 1 / (A4**2 + 0.5)),
}


@pytest.mark.parametrize("name", EVERY)
def test_the_eigenvalues_of_each_known_module_are_those_that_it_computes(name: str) -> None:
    model, expected = EVERY[name]()
    found = find_layers(model)
    assert found.sentences == []
    (layer,) = found.layers
    assert layer.eigenvalues.width == expected.numel()
    np.testing.assert_allclose(lambda_bar(layer.eigenvalues), expected.flatten().numpy(), rtol=2e-5, atol=1e-6)


def test_every_class_of_the_table_is_tested_above() -> None:
    known = {name for name, find in CLASSES.items() if callable(find)}
    aliases = {"MambaBlock", "xLSTMLayer", "SSMKernelDPLR", "SSMKernelDiag"}
    assert known - aliases == {name.partition(",")[0] for name in EVERY} - {"SSMKernelDiag", "S5 in halves", "LRU", "S7"}


@pytest.mark.parametrize("name", [name for name, find in CLASSES.items() if isinstance(find, str)])
def test_modules_without_eigenvalues_say_that_there_is_nothing_to_watch(name: str) -> None:
    found = find_layers(nn.Sequential(module(name, A_log=A4, dt_bias=A4)))
    assert found.layers == []
    assert "nothing to watch here" in found.sentences[0]


@pytest.mark.parametrize("setting", ["lower_bound", "linear_lower_bound", "safe_gate", "kda_safe_gate"])
@pytest.mark.parametrize("place", ["module", "config"])
@pytest.mark.parametrize("name", ["Unheard", "KimiDeltaAttention"])
def test_a_setting_that_changes_the_decay_refuses_the_match(name: str, place: str, setting: str) -> None:
    value = True if "safe" in setting else -5.0
    made = (
        module(name, {setting: value}, A_log=A4, dt_bias=A4)
        if place == "config"
        else module(name, A_log=A4, dt_bias=A4, **{setting: value})
    )
    found = find_layers(nn.Sequential(made))
    assert found.layers == []
    assert setting in found.sentences[0]


def test_without_such_a_setting_the_match_stands() -> None:
    made = module("Unheard", {"safe_gate": False, "lower_bound": None}, A_log=A4, dt_bias=A4)
    assert len(find_layers(made).layers) == 1


def test_a_match_by_parameter_names_is_labelled_as_unconfirmed() -> None:
    (layer,) = find_layers(nn.Sequential(module("Unheard", A_log=A4, dt_bias=A4))).layers
    assert layer.eigenvalues.note == UNCONFIRMED == "by parameter name, unconfirmed"
    (known,) = find_layers(nn.Sequential(Mamba2Mixer())).layers
    assert known.eigenvalues.note == "at gate zero"


@pytest.mark.parametrize("name", ["Unheard", "Mamba2Mixer"])
def test_parameters_of_the_wrong_shape_are_not_matched(name: str) -> None:
    found = find_layers(nn.Sequential(module(name, A_log=A4, dt_bias=A3)))
    assert found.layers == []
    assert "not as expected" in found.sentences[0]


def test_step_sizes_are_clamped_to_the_limits_of_the_module() -> None:
    (layer,) = find_layers(Mamba2Mixer(5, (0.3, 0.9))).layers
    assert layer.eigenvalues.step is not None
    steps = layer.eigenvalues.step.compute(torch.tensor([[-9.0, 0.0, 9.0]]))
    assert steps.tolist() == [[pytest.approx(0.3), pytest.approx(math.log(2)), pytest.approx(0.9)]]


def test_layers_keep_the_order_of_the_model_and_paths_without_wrappers() -> None:
    model = torch.nn.DataParallel(nn.Sequential(MambaMixer(), nn.Linear(3, 3), Mamba2Mixer()))
    assert [layer.path for layer in find_layers(model).layers] == ["0.A_log", "2.A_log"]


def test_layers_of_the_library_are_watched_through_their_protocol() -> None:
    from stablessm_core.layers import StableSSM

    (layer,) = find_layers(nn.Sequential(StableSSM(4, 6))).layers
    assert (layer.name, layer.eigenvalues.width, layer.eigenvalues.note) == ("StableSSM", 6, None)


def test_a_declaration_comes_before_the_tables() -> None:
    declared = {"*.A_log": stablessm.eigenvalues("softplus", "continuous", step="exp(dt_bias)")}
    (layer,) = find_layers(nn.Sequential(Mamba2Mixer(4)), declared).layers
    assert (layer.eigenvalues.form.map, layer.eigenvalues.note) == ("softplus", None)
    assert layer.eigenvalues.step is not None
    assert layer.eigenvalues.step.kind == "exp"


def test_a_declaration_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"layers has the patterns \['nothing'\]"):
        find_layers(nn.Sequential(Mamba2Mixer(4)), {"nothing": stablessm.eigenvalues("exp", "discrete")})
