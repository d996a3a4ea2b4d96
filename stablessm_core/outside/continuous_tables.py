"""How to find the eigenvalues of S4, S4D, S5 and their relatives, whose settings choose the map, the step size and the rule."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from stablessm_core.outside.eigenvalues import AT_GATE_ZERO, Eigenvalues, StepSize
from stablessm_core.outside.parameters import Mismatch, has, shaped, tensor_at
from stablessm_core.outside.settings import reads
from stablessm_core.telemetry.assumptions import DIAGONAL_ONLY
from stablessm_core.telemetry.forms import Form

EXP_DT = Form("exp", "continuous", "zoh", dt="dt")
HALF = "one of each conjugate pair"
LIQUID = f"{AT_GATE_ZERO}; liquid is set, so the input is added to each eigenvalue"
# radarFudan/StableSSM: parameterization -> form; best is -1/(w^2 + 0.1)
PARAMETERIZATIONS = {
    "exp": EXP_DT,
    "softplus": replace(EXP_DT, map="softplus"),
    "best": replace(EXP_DT, map="best", a=1.0, b=0.1),
    "direct": replace(EXP_DT, map="direct"),
}
# state-spaces/s4: lambda = -transform(A_real)
TRANSFORMS = {
    "exp": EXP_DT,
    "softplus": replace(EXP_DT, map="softplus"),
    "sigmoid": replace(EXP_DT, map="sigmoid"),
    "none": replace(EXP_DT, map="direct", scale=-1.0),
}
RULES = {"zoh": "zoh", "dss": "zoh", "bilinear": "bilinear"}


def _setting(module: Any, name: str, known: dict[str, Any], otherwise: str) -> Any:
    given = getattr(module, name, otherwise)
    if not isinstance(given, str) or given not in known:
        raise Mismatch(f"{name} is {given!r}; known: {', '.join(known)}")
    return known[given]


@reads()
def s4d(module: Any) -> Eigenvalues:
    """The minimal S4D kernel: lambda = -e^(log_A_real) + i A_imag, step sizes e^(log_dt), zero-order hold."""
    return _minimal(module, EXP_DT)


@reads("parameterization")
def stablessm(module: Any) -> Eigenvalues:
    """The kernel of radarFudan/StableSSM: the minimal S4D kernel with a choice of four maps."""
    return _minimal(module, _setting(module, "parameterization", PARAMETERIZATIONS, "exp"))


def _minimal(module: Any, form: Form) -> Eigenvalues:
    weight, log_dt = shaped(tensor_at(module, "log_A_real"), None, None), tensor_at(module, "log_dt")
    step = StepSize(shaped(log_dt, weight.shape[0]), "exp")
    if not has(module, "A_imag"):
        return Eigenvalues(weight, form, step)
    imag = shaped(tensor_at(module, "A_imag"), *weight.shape)
    return Eigenvalues(weight, replace(form, phase="imaginary"), step, imag, note=HALF)


@reads(
    *("disc", "real_transform", "imag_transform", "dt_transform", "dt_fast", "dt_tie", "is_real", "n_ssm", "bandlimit"),
    *("deterministic", "backend", "init", "measure"),
)
def s4(module: Any) -> Eigenvalues:
    """The kernels of state-spaces/s4: A_real (n_ssm, n), which the h channels share, and inv_dt (h, 1) or (h, n)."""
    form = _setting(module, "real_transform", TRANSFORMS, "")
    dpl = getattr(module, "P", None) is not None
    form = replace(form, rule="bilinear" if dpl else _setting(module, "disc", RULES, "zoh"))
    weight, inv_dt = shaped(tensor_at(module, "A_real"), None, None), tensor_at(module, "inv_dt")
    n_ssm, n = weight.shape
    channels = inv_dt.shape[0] if inv_dt.dim() else 1
    if not n_ssm or channels % n_ssm or inv_dt.numel() not in (channels, channels * n):
        raise Mismatch(f"step sizes of the shape {tuple(inv_dt.shape)} share {n_ssm} sets of {n} eigenvalues")
    fast = "_of_sinh" if getattr(module, "dt_fast", False) else ""
    step = StepSize(inv_dt, _setting(module, "dt_transform", {k: k for k in TRANSFORMS}, "exp") + fast)
    shared = channels // n_ssm
    if getattr(module, "is_real", False) or not has(module, "A_imag"):
        return Eigenvalues(weight, form, step, tile=shared, note=DIAGONAL_ONLY if dpl else None)
    imag = shaped(tensor_at(module, "A_imag"), *weight.shape)
    if (transform := getattr(module, "imag_transform", "none")) == "none":
        form = replace(form, phase="imaginary")
        return Eigenvalues(weight, form, step, imag, tile=shared, note=DIAGONAL_ONLY if dpl else HALF)
    if form.rule == "bilinear":
        raise Mismatch(f"imag_transform is {transform!r}; with the bilinear rule, none is known")
    return Eigenvalues(weight, form, step, tile=shared, note=f"{HALF}; without angles, because imag_transform is {transform}")


@reads("discretization", "discretize", "liquid", "degree", "bcInit", "bidir", "clip_eigs")
def s5(module: Any) -> Eigenvalues:
    """s5-pytorch: Lambda (p,) complex, with step sizes e^(log_step)."""
    weight, log_step = tensor_at(module, "Lambda"), tensor_at(module, "log_step")
    if not weight.is_complex() or log_step.numel() not in (1, weight.numel()):
        raise Mismatch(f"Lambda is {weight.dtype} with {log_step.numel()} step sizes for {weight.numel()} eigenvalues")
    form = Form("direct", "continuous", _rule(module), dt="dt", phase="imaginary")
    note = LIQUID if getattr(module, "liquid", False) else None
    if getattr(module, "clip_eigs", False):
        form = replace(form, map="clip")
    return Eigenvalues(weight, form, StepSize(log_step, "exp"), pairs=True, note=note)


def _rule(module: Any) -> str:
    """The rule of S5. s5-pytorch keeps only the function that its setting chose, such as discretize_zoh."""
    chosen = getattr(module, "discretization", None)
    if chosen is None:
        chosen = getattr(getattr(module, "discretize", None), "__name__", "zoh")
    for rule in ("bilinear", "zoh"):
        if rule in str(chosen).lower():
            return rule
    if getattr(module, "discretization", None) is None:
        return "zoh"  # a method of the module that is called "discretize", as in every S5
    raise Mismatch(f"discretization is {chosen!r}; known: zoh, bilinear")


@reads("discretization", "clip_eigs", "conj_sym", "liquid", "bidirectional", "C_init")
def s5_halves(module: Any) -> Eigenvalues:
    """S5 as in its first code: real and imaginary parts in two parameters (p,), clipped if clip_eigs is set."""
    weight: Tensor = shaped(tensor_at(module, "Lambda_re"), None)
    log_step = tensor_at(module, "log_step")
    clipped = "clip" if getattr(module, "clip_eigs", False) else "direct"
    form = Form(clipped, "continuous", _rule(module), dt="dt", phase="imaginary")
    return Eigenvalues(weight, form, StepSize(log_step, "exp"), shaped(tensor_at(module, "Lambda_im"), *weight.shape))
