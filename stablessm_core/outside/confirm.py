"""Confirms once that a foreign module computes the eigenvalues that are recorded for it.

In a copy of the module, all weights get one value, all step sizes another, and all imaginary parts a third. Then every kernel of
a time-invariant module is c lambda_bar^l or its real part, whatever its other parameters are, and lambda_bar can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from stablessm_core.outside.eigenvalues import AT_GATE_ZERO, Eigenvalues
from stablessm_core.outside.evaluate import copy_of, factors, has_functions, kernels, responses, undisturbed
from stablessm_core.telemetry.forms import Form

LENGTH = 12
SAME, DIFFERENT = 1e-4, 1e-2
SHIFTS = (0.3, -0.4)  # of the weight from its median
DECAY, ANGLE = 0.5, 0.7  # -ln|lambda_bar| and arg lambda_bar that the trials aim at


@dataclass(frozen=True)
class Found:
    """What the evaluation says. same: True or False; None if the module cannot be evaluated. sizes: |lambda_bar| of the module
    and of the form, where they differ."""

    same: bool | None
    sizes: tuple[float, float] | None = None


NOTHING = Found(None)


def confirm(module: nn.Module, of: Eigenvalues) -> Found:
    """Whether the module computes these eigenvalues. Never raises, and changes neither the module nor any random number."""
    if AT_GATE_ZERO in (of.note or "") and not has_functions(module):
        return NOTHING  # its kernel depends on its input
    answers: list[Found] = []
    for dtype in (torch.float64, torch.float32):  # some modules compute in float32 only
        try:
            with undisturbed():
                answers = [_trial(module, of, shift, dtype) for shift in SHIFTS]
        except Exception:  # noqa: BLE001, S112 - any code of another project may run here; it says nothing then
            continue
        if all(one.same is not None for one in answers):
            break
    if not answers:
        return NOTHING
    different = [one for one in answers if one.same is False]
    if different:
        return different[0]
    return answers[0] if all(one.same for one in answers) else NOTHING


def _trial(module: nn.Module, of: Eigenvalues, shift: float, dtype: torch.dtype) -> Found:
    if of.form.map in ("gate", "none") or of.form.gate:
        return NOTHING
    places = {id(t): name for name, t in (*module.named_buffers(), *module.named_parameters())}
    if any(id(t) not in places for t in of.tensors):
        return NOTHING
    copy = copy_of(module, dtype)
    if copy is None:
        return NOTHING
    tensors = dict((*copy.named_buffers(), *copy.named_parameters()))
    expected = _set(of, shift, lambda t: tensors[places[id(t)]])
    if expected is None or not 1e-3 < abs(expected) < 1e3:
        return NOTHING
    if "low-rank" in (of.note or ""):
        tensors["P"].zero_()
    return _compare(copy, expected, selective=AT_GATE_ZERO in (of.note or ""))


def _set(of: Eigenvalues, shift: float, at: Callable[[Tensor], Tensor]) -> complex | None:
    """Give all eigenvalues of the copy one value. Returns lambda_bar as the form has it, or None if it is not finite."""
    form, weight = of.form, at(of.weight)
    parts = torch.view_as_real(weight) if weight.is_complex() else weight
    real = parts[..., 0] if of.pairs else parts
    w = _weight(form, float(real.double().median()), shift)
    real.fill_(w)
    recorded = {"weight": np.array([[w]])}
    if of.step is not None:
        rate = abs(float(_rate(form, w))) or 1.0
        raw = _raw(of.step.kind, DECAY / rate / of.step.scale)
        at(of.step.weight).fill_(raw)
        steps = of.step.compute(torch.tensor([[raw]], dtype=torch.float64))
        recorded["dt"] = steps.numpy()
    if form.phase is not None:
        step = float(form.step_size({k: v[0, 0] for k, v in recorded.items()}) or 1.0) if form.time == "continuous" else 1.0
        v = math.log(ANGLE) if form.phase == "angle" else ANGLE / abs(step)
        (parts[..., 1] if of.pairs else at(of.imag if of.imag is not None else of.weight)).fill_(v)
        recorded["phase_weight"] = np.array([[v]])
    size = float(form.derive("eigenvalue", recorded)[0, 0])
    angle = float(form.derive("phase", recorded)[0, 0]) if form.complex else 0.0
    found = size * complex(math.cos(angle), math.sin(angle))
    return found if math.isfinite(size) else None


def _weight(form: Form, median: float, shift: float) -> float:
    if form.map in ("direct", "clip"):
        return (median if median and math.isfinite(median) else -0.5) * (1 + shift)
    if form.time == "discrete":
        return -0.8 + shift
    return (median if math.isfinite(median) else 0.0) + shift


def _rate(form: Form, w: float) -> float:
    one = {"weight": np.array([w]), "dt": np.array([1.0]), "phase_weight": np.array([0.0])}
    return float(Form(form.map, form.time, "zoh", a=form.a, b=form.b, dt="dt").decay(one, np)[0])


def _raw(kind: str, step: float) -> float:
    """The recorded number from which this kind of step size is about `step`."""
    function = kind.removesuffix("_of_sinh")
    raw = {"exp": math.log(step), "softplus": math.log(math.expm1(min(step, 30.0))), "none": step}.get(function, 0.0)
    return math.asinh(raw) if kind.endswith("_of_sinh") else raw


def _compare(copy: nn.Module, expected: complex, *, selective: bool) -> Found:
    rows = kernels(copy, LENGTH)
    if rows is None and not selective:
        rows = responses(copy, LENGTH)
    if rows is not None:
        return _of_rows(rows.to(torch.complex128 if rows.is_complex() else torch.float64), expected)
    for tensor in factors(copy):
        if _is_all(tensor, expected):
            return Found(True)
    return NOTHING


def _is_all(tensor: Tensor, expected: complex) -> bool:
    """Whether all numbers of the tensor are this eigenvalue, its conjugate, or its size."""
    values = tensor.to(torch.complex128).flatten()
    targets = (expected, expected.conjugate(), complex(abs(expected)))
    return bool(len(values)) and any(bool(((values - target).abs() < SAME * abs(target)).all()) for target in targets)


def _of_rows(rows: Tensor, expected: complex) -> Found:
    """Compare kernels (n, length) with c expected^l or Re(c expected^l), from l = 1 on."""
    parts = torch.cat([rows.real, rows.imag]) if rows.is_complex() else rows
    size = parts[:, 1:].abs().amax(dim=1)
    values: np.ndarray = parts[size > 1e-9 * max(1e-30, float(size.max()))][:64, 1:].numpy()
    if not len(values) or not np.isfinite(values).all():
        return NOTHING
    grown = abs(expected) ** -np.arange(values.shape[1])
    values = values * grown / np.abs(values * grown).max(axis=1, keepdims=True)
    one = expected / abs(expected)
    # a complex eigenvalue needs the two values before; for a real one, the two would not determine the coefficients
    known = np.array([2 * one.real, -1.0] if one.imag else [one.real])
    before = np.stack([values[:, 1:-1].ravel(), values[:, :-2].ravel()][: len(known)], axis=1)
    after = values[:, 2:].ravel()
    if np.abs(after - before @ known).max() < SAME:
        return Found(True)
    fitted, *_ = np.linalg.lstsq(before, after, rcond=1e-9)
    if np.abs(after - before @ fitted).max() > SAME or np.abs(after - before @ known).max() < DIFFERENT:
        return NOTHING  # no kernel of one eigenvalue
    measured = float(np.abs(np.roots([1.0, *-fitted])).max()) * abs(expected)
    return Found(False, (measured, abs(expected)))
