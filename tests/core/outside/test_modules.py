"""The table of foreign modules: each is found on a stand-in with the real names and shapes, with the right eigenvalues."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import logsigmoid, softplus

import stablessm
from stablessm_core.outside.continuous_tables import PARAMETERIZATIONS
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
        recorded = {"weight": weight.flatten().repeat_interleave(found.repeat).repeat(found.tile)}
        if found.imag is not None:
            recorded["phase_weight"] = found.imag.detach().flatten().repeat(found.tile)
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


def stablessm_kernel(name: str) -> tuple[nn.Module, Tensor]:
    w, imag, dt = torch.rand(2, 3), torch.randn(2, 3), torch.randn(2)
    rate = {"exp": w.exp(), "softplus": softplus(w), "best": 1 / (w**2 + 0.1), "direct": -w}[name]
    made = module("STABLESSMKernel", log_A_real=w, A_imag=imag, log_dt=dt, parameterization=name)
    return made, torch.exp(-dt.exp()[:, None] * rate)


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
    **{f"STABLESSMKernel, {name}": (lambda name=name: stablessm_kernel(name)) for name in PARAMETERIZATIONS},
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
    aliases = {"MambaBlock", "VMambaBlock", "xLSTMLayer", "SSMKernelDPLR", "SSMKernelDiag"}
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


def bidirectional(name: str, backward: str, *, shared: bool) -> nn.Module:
    """Mamba in two directions, with the names of the backward parameters that several projects use."""
    parameters = {"A_log": torch.randn(3, 4), backward: torch.randn(3, 4), "dt_proj__bias": torch.randn(3)}
    word = backward.replace("A", "").replace("log", "").strip("_")
    return module(name, **parameters | ({} if shared else {f"dt_proj_{word}__bias": torch.randn(3)}))


@pytest.mark.parametrize("backward", ["A_b_log", "A_log_b", "A_log_bwd", "A_reverse_log"])
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("name", ["Mamba", "Unheard"])
def test_both_directions_of_a_bidirectional_module_are_watched(name: str, backward: str, shared: bool) -> None:
    made: Any = bidirectional(name, backward, shared=shared)
    found = find_layers(nn.Sequential(made))
    assert [layer.path for layer in found.layers] == ["0.A_log", f"0.{backward}"]
    bias = made.dt_proj.bias if shared else next(m for n, m in made.named_modules() if n.startswith("dt_proj_")).bias
    expected = exp_decay(getattr(made, backward), softplus(bias)[:, None])
    np.testing.assert_allclose(lambda_bar(found.layers[1].eigenvalues), expected.detach().flatten(), rtol=1e-5)
    assert (found.sentences, found.unwatched) == ([], [])


@pytest.mark.parametrize("name", ["Mamba", "MambaBlock", "Mamba2"])
def test_a_whole_model_with_the_name_of_a_layer_gives_no_warning(name: str) -> None:
    inner, _ = heads("Mamba2") if name == "Mamba2" else mamba("MambaBlock")
    whole: Any = module(name, A_width=12)
    whole.layers = nn.ModuleList([inner])
    found = find_layers(whole)
    assert [layer.path for layer in found.layers] == ["layers.0.A_log"]
    assert found.sentences == []


@pytest.mark.parametrize("n_ssm", [1, 2, 4])
@pytest.mark.parametrize("real", [True, False])
@pytest.mark.parametrize("rule", ["zoh", "bilinear"])
def test_channels_that_share_eigenvalues_have_step_sizes_of_their_own(n_ssm: int, real: bool, rule: str) -> None:
    w, imag, dt = torch.randn(n_ssm, 3), torch.randn(n_ssm, 3), torch.randn(4, 1)
    parameters = {"A_real": w, "inv_dt": dt} | ({} if real else {"A_imag": imag})
    settings = {"real_transform": "exp", "dt_transform": "exp", "disc": rule, "is_real": real, "imag_transform": "none"}
    (layer,) = find_layers(module("SSMKernelDiag", **parameters, **settings)).layers
    channel = torch.arange(4) % n_ssm
    z = dt.exp() * (-w.exp() + 1j * (0 if real else imag))[channel]
    expected = torch.exp(z) if rule == "zoh" else (1 + z / 2) / (1 - z / 2)
    assert layer.eigenvalues.problem() is None
    np.testing.assert_allclose(lambda_bar(layer.eigenvalues), expected.abs().flatten(), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize(("setting", "value"), [("disc", "foh"), ("real_transform", "relu"), ("parameterization", "cayley")])
def test_a_choice_that_is_not_known_is_refused_with_its_name(setting: str, value: str) -> None:
    name = "STABLESSMKernel" if setting == "parameterization" else "SSMKernelDiag"
    made = s4("exp")[0] if name == "SSMKernelDiag" else stablessm_kernel("exp")[0]
    setattr(made, setting, value)
    found = find_layers(nn.Sequential(made))
    assert found.layers == []
    assert f"{setting} is {value!r}" in found.sentences[0]


def test_parameters_that_look_like_eigenvalues_are_listed_beside_known_layers() -> None:
    model = nn.Sequential(Mamba2Mixer(4), module("Griffin", Lambda=A4, gate_log=A4), nn.Linear(2, 2))
    found = find_layers(model)
    assert len(found.layers) == 1
    assert found.unwatched == ["1.Lambda"]
