"""Checks that a layer's recurrence matches the form in the layer's record. The check runs one step from two different states.

With a wrong form, the recorded eigenvalues would be wrong for a whole run, and nobody would notice. So `model.build_model`
probes each kind of layer in a model once. A probe takes about a millisecond.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.telemetry.forms import GATES, NO_MAP, Form, spread
from stablessm_core.watch.watchable import Record

TOLERANCE = 1e-4  # maximum |claimed - measured eigenvalue|; rounding errors in float32 are far smaller
ROUNDING = 8 * float(np.finfo(np.float32).eps)  # maximum relative error of an angle, which can be many radians per step
NUDGE = 16 * float(np.finfo(np.float32).eps)  # relative change of weights and input that stands for all rounding of a step
SIZES = (1.0, 1e-3, 1e-6)  # of the input, for weights of any size


Array = np.ndarray[tuple[int, ...], np.dtype[Any]]


class FormError(ValueError):
    """A layer's form and its recurrence disagree."""


def probe_form(layer: WatchedLayer, name: str, d_model: int) -> str:
    """Raise FormError if one step does not multiply a layer's states as the form in the layer's first record describes.

    layer: must be on the CPU. The probe does not change the layer or the random state. name: the layer's name, for the error
    message. Returns "" if the layer was probed, and otherwise the reason why the layer cannot be probed
    (`WatchedLayer.not_probed`).
    """
    if layer.not_probed:
        return layer.not_probed
    with _keep_unchanged(layer):
        _compare(layer, name, layer.probe_scale * torch.arange(d_model, dtype=torch.float32).sin()[None])
    return ""


def form_error(layer: WatchedLayer, d_model: int) -> tuple[float, float] | str:
    """(error, rounding): how far one step departs from the form at most, as a share of the eigenvalue, or of 1 if it is smaller;
    and how much of this error rounding may make. A reason if the layer cannot be probed.

    Unlike `probe_form`, this compares large eigenvalues and large weights as well, as training gives them. What a step adds to
    the states may hide the factor that multiplies them, so of inputs of several sizes the one with the least rounding counts. The
    arguments are those of `probe_form`.
    """
    if layer.not_probed:
        return layer.not_probed
    x_t = layer.probe_scale * torch.arange(d_model, dtype=torch.float32).sin()[None]
    with _keep_unchanged(layer), np.errstate(all="ignore"):
        found = [_error_and_rounding(layer, size * x_t) for size in SIZES]
    known = [(rounding, error) for error, rounding in found if math.isfinite(error) and math.isfinite(rounding)]
    if not known:
        return "its eigenvalues are not finite"
    rounding, error = min(known)
    return error, rounding


def _error_and_rounding(layer: WatchedLayer, x_t: Tensor) -> tuple[float, float]:
    """Both for one input; of the eigenvalue whose error is explained worst."""
    actual, claimed = _measure(layer, x_t)
    size = np.maximum(1.0, np.abs(claimed))
    error = np.abs(actual - claimed) / size
    rounding = ROUNDING * _angle(layer.records()[0])[:, None] + _added(layer, x_t, actual.shape) / size
    more, less = (_measure(layer, nudge * x_t, nudge) for nudge in (1 + NUDGE, 1 - NUDGE))
    for one, other in zip(more, less, strict=True):
        rounding = rounding + np.abs(one - other) / size
    if not (np.isfinite(error).all() and np.isfinite(rounding).all()):
        return math.inf, math.inf
    worst = np.unravel_index(int(np.argmax(error - rounding)), error.shape)
    return float(error[worst]), float(rounding[worst])


def _added(layer: WatchedLayer, x_t: Tensor, shape: tuple[int, ...]) -> Array:
    """The rounding of states to which one step adds its input; `transition` subtracts such states."""
    _, after = layer.step(x_t, layer.initial_state(1))
    added = layer.recurrent(after).abs().double().numpy()
    return ROUNDING * (added.reshape(shape) if added.size == math.prod(shape) else added.max())


@contextmanager
def _keep_unchanged(layer: WatchedLayer) -> Iterator[None]:
    """Restore the layer's attributes and the random state at the end."""
    attributes = [(module, dict(vars(module))) for module in layer.modules()]
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            yield
    finally:
        for module, before in attributes:
            vars(module).clear()
            vars(module).update(before)


def _measure(layer: WatchedLayer, x_t: Tensor, nudge: float = 1.0) -> tuple[Array, Array]:
    """(actual, claimed) eigenvalues of one step. nudge: multiplies the weights in the claimed ones."""
    record = layer.records()[0]
    form = record.form
    actual = layer.transition(x_t).to(torch.complex128).numpy()
    if actual.ndim != 2 or len(actual) != record.width:
        raise FormError(f"transition() has shape {actual.shape}; needs {record.width} eigenvalues, states of each")
    if form.gate:  # the states of an eigenvalue may have different gates, so compare the slowest and the fastest state
        statistics = _gates(layer, record, x_t)
        claimed = _by_size(np.stack([_claimed(record, statistics[gate], nudge) for gate in ("gate_min", "gate_max")], 1))
        actual = _by_size(actual)
    else:
        claimed = np.broadcast_to(_claimed(record, None, nudge)[:, None], actual.shape)
    if form.map in NO_MAP or form.phase == "half_plane" or (form.rule == "bilinear" and not form.complex):
        actual = np.abs(actual)  # the form does not determine signs and angles
    return actual, claimed


def _compare(layer: WatchedLayer, name: str, x_t: Tensor) -> None:
    try:
        actual, claimed = _measure(layer, x_t)
    except FormError as error:
        raise FormError(f"layer {name!r}: {error}") from None
    record = layer.records()[0]
    with np.errstate(all="ignore"):
        wrong = ~(np.abs(actual - claimed) <= TOLERANCE + ROUNDING * _angle(record)[:, None])
        wrong &= np.isfinite(actual) | np.isfinite(claimed)
    if wrong.any():
        eigenvalue, state = np.argwhere(wrong)[0]
        raise FormError(
            f"layer {name!r}: its form does not match its recurrence. Record {record.name or 'eigenvalues'!r}, eigenvalue "
            f"{eigenvalue}: by the form ({_described(record.form)}) it is {_short(claimed[eigenvalue, state])}, but one step "
            f"multiplies its state by {_short(actual[eigenvalue, state])}"
        )


def _gates(layer: WatchedLayer, record: Record, x_t: Tensor) -> dict[str, Tensor]:
    """The smallest, mean and largest value of the record's gate in a forward pass over one step, each (gates,)."""
    for module in layer.modules():
        if "scan_backend" in vars(module):
            vars(module)["scan_backend"] = "reference"  # the run's own backend may not support the CPU
    layer(x_t[:, None])
    return dict(zip(GATES, layer.gates()[record.gate], strict=True))


def _claimed(record: Record, gate: Tensor | None, nudge: float = 1.0) -> Array:
    """The eigenvalues lambda_bar according to the record's form, complex (width,). gate: the value of each gate."""
    numbers = {"weight": record.weight, "phase_weight": record.phase, **dict.fromkeys(GATES, gate)}
    if record.log_dt is not None:
        numbers["dt"] = record.log_dt.exp()
    recorded = spread(
        {kind: values.double().flatten().numpy() * nudge for kind, values in numbers.items() if values is not None},
        record.width,
    )
    eigenvalue: Array = record.form.derive("eigenvalue", recorded).astype(complex)
    if record.form.complex:
        eigenvalue = eigenvalue * np.exp(1j * record.form.derive("phase", recorded))
    return eigenvalue


def _by_size(values: Array) -> Array:
    """The smallest and the largest value of each row, by absolute value: (rows, 2)."""
    order = np.argsort(np.abs(values), 1)
    return np.take_along_axis(values, order[:, [0, -1]], 1)


def _angle(record: Record) -> Array:
    """|angle| of each eigenvalue, before the angle is reduced modulo 2 pi, (width,)."""
    if record.phase is None or not record.form.complex:
        return np.zeros(record.width)
    angle = record.phase.double().flatten()
    if record.form.phase == "angle":
        angle = angle.exp()
    if record.form.phase == "imaginary" and record.log_dt is not None:
        dt = record.log_dt.double().exp().flatten()
        angle = angle * dt.repeat_interleave(len(angle) // len(dt))
    turned: Array = angle.abs().numpy()
    return turned


def _described(form: Form) -> str:
    parts = [f"map {form.map!r}", f"{form.time} time", f"rule {form.rule!r}", *([f"phase {form.phase!r}"] if form.phase else [])]
    return ", ".join([*parts, *(["with a gate"] if form.gate else [])])


def _short(value: complex) -> str:
    value = complex(value)
    return f"{value.real:.6g}" if value.imag == 0 else f"{value.real:.6g}{value.imag:+.6g}i"
