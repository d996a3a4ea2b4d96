"""The tables of foreign modules: by the name of the class, and by the names of the parameters of an unknown class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from stablessm_core.outside.continuous_tables import EXP_DT, s4, s4d, s5, s5_halves, stablessm
from stablessm_core.outside.eigenvalues import AT_GATE_ZERO, Eigenvalues, StepSize
from stablessm_core.outside.parameters import Mismatch, directions, of_direction, shaped, tensor_at
from stablessm_core.outside.settings import NUMBERS, reads
from stablessm_core.telemetry.assumptions import DECAY_ONLY
from stablessm_core.telemetry.forms import Form

GATE = Form("gate", "discrete", "none", gate=True)
# submodules that compute the write strength of a delta rule from the input
WRITES = ("b_proj", "beta_proj", "beta", "to_beta", "w_beta", "wb")

Find = Callable[[Any], "Eigenvalues | Sequence[Eigenvalues] | None"]


@reads("bimamba_type", "bimamba")
def _mamba(module: Any) -> list[Eigenvalues]:
    """A_log (d, n) and the bias of dt_proj (d), also of each further direction of a bidirectional module."""
    found = [_of_channels(module, "A_log", "dt_proj.bias")]
    for name, word in directions(module, "A_log"):
        if getattr(module, name).shape == found[0].weight.shape:
            found.append(_of_channels(module, name, of_direction(module, "dt_proj.bias", word)))
    return found


def _of_channels(module: Any, name: str, bias_at: str) -> Eigenvalues:
    weight, bias = shaped(tensor_at(module, name), None, None), tensor_at(module, bias_at)
    return Eigenvalues(weight, EXP_DT, StepSize(shaped(bias, weight.shape[0]), "softplus"), note=AT_GATE_ZERO)


def _zamba(module: Any) -> Eigenvalues:
    weight, bias = shaped(tensor_at(module, "A_log"), None, None, None), tensor_at(module, "dt_proj_bias")
    return Eigenvalues(weight, EXP_DT, StepSize(shaped(bias, *weight.shape[:2]), "softplus"), note=AT_GATE_ZERO)


@reads("time_step_limit", "dt_limit", "rmsnorm", "norm_before_gate")
def _heads(module: Any) -> list[Eigenvalues]:
    """Mamba-2: one decay for each head, also of each further direction of a bidirectional module."""
    found = [_of_heads(module, "A_log", "dt_bias")]
    for name, word in directions(module, "A_log"):
        if getattr(module, name).shape == found[0].weight.shape:
            found.append(_of_heads(module, name, of_direction(module, "dt_bias", word)))
    return found


def _of_heads(module: Any, name: str, bias_at: str) -> Eigenvalues:
    """The decays of the heads. The step size is clamped to the limits of the module or of its configuration."""
    weight = shaped(tensor_at(module, name), None)
    places = (module, *(getattr(module, at, None) for at in ("config", "args")))
    limits_at = ((of, n) for of in places for n in ("time_step_limit", "dt_limit"))
    low, high = next((v for of, n in limits_at if (v := getattr(of, n, None)) is not None), (0.0, float("inf")))
    limits = (None if low in (0, None) else float(low), None if high in (None, float("inf")) else float(high))
    step = StepSize(shaped(tensor_at(module, bias_at), len(weight)), "softplus", low=limits[0], high=limits[1])
    return Eigenvalues(weight, EXP_DT, step, note=DECAY_ONLY if writes(module) else AT_GATE_ZERO)


@reads("allow_neg_eigval", "use_gate", "use_qk_l2norm")
def _delta_net(module: Any) -> list[Eigenvalues]:
    """A gated delta rule: the decay of each head."""
    return [replace(found, note=DECAY_ONLY) for found in _heads(module)]


def writes(module: Any) -> bool:
    """Whether the module computes a write strength, as delta rules do: its state then has further eigenvalues."""
    return any(getattr(module, name, None) is not None for name in WRITES)


def _kda(module: Any) -> Eigenvalues:
    """Kimi delta attention: one weight for each head, one step size for each head and channel."""
    for of in (module, getattr(module, "config", None)):
        for name in (*NUMBERS, "safe_gate", "kda_safe_gate", "use_safe_gate"):
            if getattr(of, name, None) not in (None, False):
                raise Mismatch(f"{name} is set, which changes what A_log means")
    return _per_channel(module)


def _per_channel(module: Any) -> Eigenvalues:
    weight, bias = tensor_at(module, "A_log"), tensor_at(module, "dt_bias")
    if weight.numel() == 0 or bias.numel() % weight.numel():
        raise Mismatch(f"dt_bias has {bias.numel()} values for {weight.numel()} heads")
    return Eigenvalues(weight, EXP_DT, StepSize(bias, "softplus"), repeat=bias.numel() // weight.numel(), note=AT_GATE_ZERO)


def _bailing(module: Any) -> Eigenvalues:
    """Kimi delta attention whose lower bound counts only if its safe gate is on."""
    return _per_channel(module) if getattr(module, "safe_gate", None) is False else _kda(module)


def _rg_lru(module: Any) -> Eigenvalues:
    weight = shaped(tensor_at(module, "recurrent_param"), None)
    bias = tensor_at(module, "recurrent_gate_bias")
    if bias.numel() != weight.numel():
        raise Mismatch(f"recurrent_gate_bias has {bias.numel()} values for {weight.numel()} eigenvalues")
    form = Form("softplus", "continuous", "zoh", dt="dt")
    return Eigenvalues(weight, form, StepSize(bias, "sigmoid", scale=8.0), note=AT_GATE_ZERO)


def _rwkv4(module: Any) -> Eigenvalues:
    return Eigenvalues(shaped(tensor_at(module, "time_decay"), None), Form("exp", "discrete", "none"))


def _rwkv6(module: Any) -> Eigenvalues:
    weight = shaped(tensor_at(module, "w_proj.linear.lora.2.bias"), None)
    return Eigenvalues(weight, Form("exp", "discrete", "none"), note=AT_GATE_ZERO)


def _xlstm(module: Any) -> Eigenvalues:
    bias = shaped(tensor_at(module, "fgate_preact.bias"), None)
    if (cap := getattr(getattr(module, "config", None), "gate_soft_cap", 15.0)) != 15.0:
        raise Mismatch(f"gate_soft_cap is {cap}; 15 is known")
    return Eigenvalues(bias, GATE, StepSize(bias, "decay_of_capped"), note=AT_GATE_ZERO)


def _gla(module: Any) -> Eigenvalues:
    bias = shaped(tensor_at(module, "gk_proj.1.bias"), None)
    for setting, known in (("gate_logit_normalizer", 16), ("clamp_min", None)):
        if (given := getattr(module, setting, known)) != known:
            raise Mismatch(f"{setting} is {given}; {known} is known")
    return Eigenvalues(bias, GATE, StepSize(bias, "decay_of_sixteenth"), note=AT_GATE_ZERO)


def _lru(module: Any) -> Eigenvalues:
    weight = shaped(tensor_at(module, "nu_log"), None)
    form = Form("exp", "discrete", "none", phase="angle")
    return Eigenvalues(weight, form, imag=shaped(tensor_at(module, "theta_log"), *weight.shape))


def _s7(module: Any) -> Eigenvalues:
    weight = shaped(tensor_at(module, "base_params"), None)
    return Eigenvalues(weight, Form("best", "discrete", "none", a=1.0, b=0.5), note=AT_GATE_ZERO)


HEADS = """
    Mamba2Mixer BambaMixer Zamba2MambaMixer FalconH1Mixer NemotronHMamba2Mixer NemotronHMamba2Layer GraniteMoeHybridMambaLayer
    Mamba2 Mamba2Block Mamba2Simple LogLinearMamba2 LogLinearMamba2Mixer
"""
DELTA_NETS = """
    Qwen3NextGatedDeltaNet Qwen3_5GatedDeltaNet Qwen3_5MoeGatedDeltaNet Qwen4ExpTextGatedDeltaNet OlmoHybridGatedDeltaNet
    LaraMiniGatedDeltaNet GatedDeltaNet GatedDeltaProduct Comba
"""
# name of a class -> how to find its eigenvalues, or why there is nothing to watch
CLASSES: dict[str, Find | str] = {
    **dict.fromkeys(("MambaMixer", "FalconMambaMixer", "JambaMambaMixer", "Mamba", "MambaBlock", "VMambaBlock"), _mamba),
    "ZambaMambaMixer": _zamba,
    **dict.fromkeys(HEADS.split(), _heads),
    **dict.fromkeys(DELTA_NETS.split(), _delta_net),
    **dict.fromkeys(("KimiLinearForgetGate", "KimiDeltaAttention", "Glm5NextTextForgetGate"), _kda),
    "BailingHybridForgetGate": _bailing,
    "RecurrentGemmaRglru": _rg_lru,
    "RwkvSelfAttention": _rwkv4,
    "RWKV6Attention": _rwkv6,
    "mLSTMLayer": _xlstm,
    "xLSTMLayer": _xlstm,
    "GatedLinearAttention": _gla,
    "S4DKernel": s4d,
    "STABLESSMKernel": stablessm,
    "S5SSM": s5,
    **dict.fromkeys(("SSMKernelDiag", "SSMKernelDPLR"), s4),
    "MiniMaxLightningAttention": "because its decay is a fixed buffer",
    "MultiScaleRetention": "because its decay is a constant",
    **dict.fromkeys(("Lfm2ShortConv", "Lfm3ShortConv"), "because a short convolution has no eigenvalues"),
    "DeltaNet": "because its state has no decay",
    **dict.fromkeys(("TTTLinear", "TTTMLP", "MesaNet"), "because no parameter holds its eigenvalues"),
    "RWKV7Attention": "because its diagonal is not its spectrum",
    **dict.fromkeys(("minGRU", "minLSTM"), "because its gate comes from the input alone"),
    "Mamba3": "because its decay comes from the input alone",
}
# the parameters of a module of an unknown class -> how to find its eigenvalues; the first match counts
PATTERNS: tuple[tuple[tuple[str, ...], Find], ...] = (
    (("A_log", "dt_proj.bias"), _mamba),
    (("A_log", "dt_proj_bias"), _zamba),
    (("A_log", "dt_bias"), _heads),
    (("log_A_real", "log_dt"), s4d),
    (("A_real", "inv_dt"), s4),
    (("Lambda", "log_step"), s5),
    (("Lambda_re", "Lambda_im", "log_step"), s5_halves),
    (("nu_log", "theta_log"), _lru),
    (("recurrent_param", "recurrent_gate_bias"), _rg_lru),
    (("time_decay", "time_first"), _rwkv4),
    (("base_params",), _s7),
)
