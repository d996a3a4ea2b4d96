"""The tables of foreign modules: by the name of the class, and by the names of the parameters of an unknown class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import Tensor

from stablessm_core.outside.eigenvalues import AT_GATE_ZERO, Eigenvalues, StepSize
from stablessm_core.telemetry.forms import Form

EXP_DT = Form("exp", "continuous", "zoh", dt="dt")
GATE = Form("gate", "discrete", "none", gate=True)
# with one of these settings, the parameters with the usual names mean something else
OTHER_DECAY = (
    *("lower_bound", "linear_lower_bound", "kda_lower_bound", "safe_gate_lower_bound"),
    *("safe_gate", "kda_safe_gate", "use_safe_gate"),
)

Find = Callable[[Any], "Eigenvalues | None"]


class Mismatch(Exception):
    """A module has a known class but unexpected parameters."""


def tensor_at(module: Any, path: str) -> Tensor:
    """The parameter or buffer at a path such as "dt_proj.bias", also inside a wrapped linear layer."""
    found = module
    for name in path.split("."):
        inner = getattr(found, name, None)
        if inner is None and hasattr(found, "base_layer"):
            inner = getattr(found.base_layer, name, None)
        if inner is None:
            raise Mismatch(f"there is no {path}")
        found = inner
    if not isinstance(found, Tensor):
        raise Mismatch(f"{path} is no tensor")
    return found


def _shape(tensor: Tensor, *expected: int | None) -> Tensor:
    fits = tensor.dim() == len(expected) and all(e is None or e == n for e, n in zip(expected, tensor.shape, strict=True))
    if not fits:
        wanted = ", ".join("n" if e is None else str(e) for e in expected)
        raise Mismatch(f"a shape is {tuple(tensor.shape)} instead of ({wanted})")
    return tensor


def _mamba(module: Any) -> Eigenvalues:
    weight, bias = _shape(tensor_at(module, "A_log"), None, None), tensor_at(module, "dt_proj.bias")
    return Eigenvalues(weight, EXP_DT, StepSize(_shape(bias, weight.shape[0]), "softplus"), note=AT_GATE_ZERO)


def _mamba_block(module: Any) -> Eigenvalues | None:
    """The mixer of mambapy. transformers has a class of this name too, which contains a mixer."""
    return _mamba(module) if hasattr(module, "A_log") else None


def _zamba(module: Any) -> Eigenvalues:
    weight, bias = _shape(tensor_at(module, "A_log"), None, None, None), tensor_at(module, "dt_proj_bias")
    return Eigenvalues(weight, EXP_DT, StepSize(_shape(bias, *weight.shape[:2]), "softplus"), note=AT_GATE_ZERO)


def _heads(module: Any) -> Eigenvalues:
    """Mamba-2 and gated delta rules: one decay for each head. The step size is clamped to the module's limits."""
    weight = _shape(tensor_at(module, "A_log"), None)
    low, high = next(
        (v for n in ("time_step_limit", "dt_limit") if (v := getattr(module, n, None)) is not None), (0.0, float("inf"))
    )
    limits = (None if low in (0, None) else float(low), None if high in (None, float("inf")) else float(high))
    step = StepSize(_shape(tensor_at(module, "dt_bias"), len(weight)), "softplus", low=limits[0], high=limits[1])
    return Eigenvalues(weight, EXP_DT, step, note=AT_GATE_ZERO)


def _delta_net(module: Any) -> Eigenvalues:
    found = _heads(module)
    return replace(found, note="decay factor only, at gate zero; the write strength beta turns the state too")


def _kda(module: Any) -> Eigenvalues:
    """Kimi delta attention: one weight for each head, one step size for each head and channel."""
    if setting := other_decay(module):
        raise Mismatch(f"{setting} is set, which changes what A_log means")
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
    weight = _shape(tensor_at(module, "recurrent_param"), None)
    bias = tensor_at(module, "recurrent_gate_bias")
    if bias.numel() != weight.numel():
        raise Mismatch(f"recurrent_gate_bias has {bias.numel()} values for {weight.numel()} eigenvalues")
    form = Form("softplus", "continuous", "zoh", dt="dt")
    return Eigenvalues(weight, form, StepSize(bias, "sigmoid", scale=8.0), note=AT_GATE_ZERO)


def _rwkv4(module: Any) -> Eigenvalues:
    return Eigenvalues(_shape(tensor_at(module, "time_decay"), None), Form("exp", "discrete", "none"))


def _rwkv6(module: Any) -> Eigenvalues:
    weight = _shape(tensor_at(module, "w_proj.linear.lora.2.bias"), None)
    return Eigenvalues(weight, Form("exp", "discrete", "none"), note=AT_GATE_ZERO)


def _xlstm(module: Any) -> Eigenvalues:
    bias = _shape(tensor_at(module, "fgate_preact.bias"), None)
    if (cap := getattr(getattr(module, "config", None), "gate_soft_cap", 15.0)) != 15.0:
        raise Mismatch(f"gate_soft_cap is {cap}; 15 is known")
    return Eigenvalues(bias, GATE, StepSize(bias, "decay_of_capped"), note=AT_GATE_ZERO)


def _gla(module: Any) -> Eigenvalues:
    bias = _shape(tensor_at(module, "gk_proj.1.bias"), None)
    for setting, known in (("gate_logit_normalizer", 16), ("clamp_min", None)):
        if (given := getattr(module, setting, known)) != known:
            raise Mismatch(f"{setting} is {given}; {known} is known")
    return Eigenvalues(bias, GATE, StepSize(bias, "decay_of_sixteenth"), note=AT_GATE_ZERO)


def _s4d(module: Any) -> Eigenvalues:
    weight, log_dt = _shape(tensor_at(module, "log_A_real"), None, None), tensor_at(module, "log_dt")
    form = replace(EXP_DT, phase="imaginary")
    step = StepSize(_shape(log_dt, weight.shape[0]), "exp")
    return Eigenvalues(weight, form, step, _shape(tensor_at(module, "A_imag"), *weight.shape), note="one of each conjugate pair")


def _s4(module: Any) -> Eigenvalues:
    transform, imag = getattr(module, "real_transform", None), getattr(module, "imag_transform", "none")
    dt_transform = getattr(module, "dt_transform", None)
    if transform not in ("exp", "softplus") or imag != "none" or dt_transform not in ("exp", "softplus"):
        raise Mismatch(f"the transforms {transform!r}, {imag!r} and {dt_transform!r} are not known")
    if getattr(module, "dt_fast", False):
        raise Mismatch("dt_fast is set, which is not known")
    weight = _shape(tensor_at(module, "A_real"), None, None)
    inv_dt = tensor_at(module, "inv_dt")
    n_ssm = weight.shape[0]
    if inv_dt.numel() != n_ssm:
        raise Mismatch(f"{inv_dt.numel()} step sizes share {n_ssm} sets of eigenvalues")
    form = Form(transform, "continuous", "zoh", dt="dt", phase="imaginary")
    low_rank = getattr(module, "P", None) is not None
    note = "of the diagonal part only, without the low-rank part" if low_rank else "one of each conjugate pair"
    return Eigenvalues(
        weight, form, StepSize(inv_dt, dt_transform), _shape(tensor_at(module, "A_imag"), *weight.shape), note=note
    )


def _s5(module: Any) -> Eigenvalues:
    weight, log_step = tensor_at(module, "Lambda"), tensor_at(module, "log_step")
    if not weight.is_complex() or log_step.numel() not in (1, weight.numel()):
        raise Mismatch(f"Lambda is {weight.dtype} with {log_step.numel()} step sizes for {weight.numel()} eigenvalues")
    # s5-pytorch keeps only the function that its setting chose
    chosen = getattr(module, "discretization", None) or getattr(getattr(module, "discretize", None), "__name__", "")
    rule = "bilinear" if "bilinear" in str(chosen) else "zoh"
    form = Form("direct", "continuous", rule, dt="dt", phase="imaginary")
    return Eigenvalues(weight, form, StepSize(log_step, "exp"), pairs=True)


def _s5_halves(module: Any) -> Eigenvalues:
    weight, log_step = _shape(tensor_at(module, "Lambda_re"), None), tensor_at(module, "log_step")
    form = Form("clip" if getattr(module, "clip_eigs", False) else "direct", "continuous", "zoh", dt="dt", phase="imaginary")
    return Eigenvalues(weight, form, StepSize(log_step, "exp"), _shape(tensor_at(module, "Lambda_im"), *weight.shape))


def _lru(module: Any) -> Eigenvalues:
    weight = _shape(tensor_at(module, "nu_log"), None)
    form = Form("exp", "discrete", "none", phase="angle")
    return Eigenvalues(weight, form, imag=_shape(tensor_at(module, "theta_log"), *weight.shape))


def _s7(module: Any) -> Eigenvalues:
    weight = _shape(tensor_at(module, "base_params"), None)
    return Eigenvalues(weight, Form("best", "discrete", "none", a=1.0, b=0.5), note=AT_GATE_ZERO)


def other_decay(module: Any) -> str | None:
    """The setting of the module or of its configuration that changes the decay; None if there is none."""
    for of in (module, getattr(module, "config", None)):
        for name in OTHER_DECAY:
            if getattr(of, name, None) not in (None, False):
                return name
    return None


HEADS = """
    Mamba2Mixer BambaMixer Zamba2MambaMixer FalconH1Mixer NemotronHMamba2Mixer NemotronHMamba2Layer GraniteMoeHybridMambaLayer
    Mamba2 Mamba2Simple LogLinearMamba2 LogLinearMamba2Mixer
"""
DELTA_NETS = """
    Qwen3NextGatedDeltaNet Qwen3_5GatedDeltaNet Qwen3_5MoeGatedDeltaNet Qwen4ExpTextGatedDeltaNet OlmoHybridGatedDeltaNet
    LaraMiniGatedDeltaNet GatedDeltaNet GatedDeltaProduct Comba
"""
# name of a class -> how to find its eigenvalues, or why there is nothing to watch
CLASSES: dict[str, Find | str] = {
    **dict.fromkeys(("MambaMixer", "FalconMambaMixer", "JambaMambaMixer", "Mamba"), _mamba),
    "MambaBlock": _mamba_block,
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
    "S4DKernel": _s4d,
    "S5SSM": _s5,
    **dict.fromkeys(("SSMKernelDiag", "SSMKernelDPLR"), _s4),
    "MiniMaxLightningAttention": "because its decay is a fixed buffer",
    "MultiScaleRetention": "because its decay is a constant",
    **dict.fromkeys(("Lfm2ShortConv", "Lfm3ShortConv"), "because a short convolution has no eigenvalues"),
    "DeltaNet": "because its state has no decay",
    **dict.fromkeys(("TTTLinear", "TTTMLP", "MesaNet"), "because no parameter holds its eigenvalues"),
    "RWKV7Attention": "because its diagonal is not its spectrum",
    "Mamba3": "because its decay comes from the input alone",
}
# the parameters of a module of an unknown class -> how to find its eigenvalues; the first match counts
PATTERNS: tuple[tuple[tuple[str, ...], Find], ...] = (
    (("A_log", "dt_proj.bias"), _mamba),
    (("A_log", "dt_proj_bias"), _zamba),
    (("A_log", "dt_bias"), _heads),
    (("log_A_real", "A_imag", "log_dt"), _s4d),
    (("A_real", "A_imag", "inv_dt"), _s4),
    (("Lambda", "log_step"), _s5),
    (("Lambda_re", "Lambda_im", "log_step"), _s5_halves),
    (("nu_log", "theta_log"), _lru),
    (("recurrent_param", "recurrent_gate_bias"), _rg_lru),
    (("time_decay", "time_first"), _rwkv4),
    (("base_params",), _s7),
)
