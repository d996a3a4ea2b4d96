"""Estimates how far the next update may move an eigenvalue's weight, for alerts that warn of non-finite numbers."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from stablessm_core.maps import formulas
from stablessm_core.telemetry.detectors.alert import Setup, Watch
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows
from stablessm_core.telemetry.forms import NO_MAP, Form
from stablessm_core.telemetry.stability import gradient_size, predicted_weight_step


def may_be_outside(layer: LayerRows) -> bool:
    """True if eigenvalues of this layer may be outside the stability boundary, and this is an error.

    A recorded distance below 0 counts for more than the declaration of a map that no weight reaches the boundary.
    """
    if layer.form is None or can_cross(layer.form):
        return True
    return layer.form.bounded and not layer.distance.least >= 0


@cache
def can_cross(form: Form) -> bool:
    """True if eigenvalues of this form can cross the stability boundary, as its map declares, and crossing the boundary is an
    error."""
    if form.map in NO_MAP or not form.bounded:
        return form.map == "gate" and form.bounded
    reach = formulas(form.map, form.time, np, a=form.a, b=form.b).reachable
    return reach.high > (1.0 if form.time == "discrete" else 0.0) or (reach.low < -1.0 and form.time == "discrete")


def before_first(layer: LayerRows, watch: Watch) -> np.ndarray:
    """The weights one step before the first row, (d_state,). Also stores the last row's weights in the detector's memory."""
    w = layer.weight.values
    first: np.ndarray = watch.memory.get(layer.id, w[0])
    watch.memory[layer.id] = w[-1].copy()
    return first


def weight_steps(rows: Rows, layer: LayerRows, setup: Setup, first: np.ndarray) -> np.ndarray | None:
    """The predicted |dw| of each row's update, (rows, d_state); None if |dw| cannot be predicted.

    first: the result of `before_first`. With momentum, the prediction for the first row needs these weights.
    """
    if rows.lr is None or layer.recorded is None:
        return None
    rate, w = setup.recurrent * rows.lr[:, None].astype(np.float64), layer.weight.values
    if setup.optimizer == "adamw":
        return np.asarray(predicted_weight_step("adamw", rate, w))  # type: ignore[arg-type]
    gradient = gradient_size(layer.ratio.values, w) * _clipped(rows, setup)[:, None]
    before = np.concatenate([first[None], w[:-1]])  # the weights one step before each row
    previous = np.abs(w.astype(np.float64) - before) if setup.momentum else 0.0
    return np.asarray(
        predicted_weight_step(setup.optimizer, rate, gradient, setup.momentum, previous, nesterov=setup.nesterov)  # type: ignore[arg-type]
    )


def relative_step(rows: Rows, setup: Setup | None) -> np.ndarray | None:
    """The length of each row's update by sgd as a share of the norm of all weights, (rows,): learning rate x clipped gradient /
    weights, without momentum. None for other optimizers, and if a part is not recorded."""
    if setup is None or setup.optimizer != "sgd" or rows.lr is None or rows.grad_norm is None or rows.weight_norm is None:
        return None
    step = rows.lr.astype(np.float64) * rows.grad_norm.astype(np.float64) * _clipped(rows, setup)
    with np.errstate(all="ignore"):
        return np.asarray(step / rows.weight_norm.astype(np.float64))


def computes_gates(form: Form | None) -> bool:
    """True if the layer multiplies the rates of its eigenvalues by gates that it computes from its input."""
    return form is not None and form.gate and not form.channels and form.map != "gate"


def at_largest_gate(layer: LayerRows) -> dict[str, np.ndarray]:
    """The recorded inputs of a layer, with the largest gate in place of the mean of a gate that is computed from the input. An
    eigenvalue outside the boundary is farthest outside at this gate."""
    recorded = dict(layer.recorded or {})
    if computes_gates(layer.form):
        recorded["gate_mean"] = recorded["gate_max"]
    return recorded


def carried_weights(layer: LayerRows, setup: Setup, first: np.ndarray) -> np.ndarray:
    """Each row's weights after a step of momentum alone, (rows, d_state). Arguments as in `weight_steps`."""
    w = layer.weight.values.astype(np.float64)
    return np.asarray(w + setup.momentum * (w - np.concatenate([first[None], w[:-1]])))


def gate_growth(layer: LayerRows, watch: Watch) -> np.ndarray | float:
    """The factor by which the largest gate of each eigenvalue grew in the last step, at least 1, (rows, eigenvalues).

    A gate is computed from the input by weights that move too, so it may grow as much again. 1 if the layer does not compute a
    gate, or if its gate is the decay itself. The detector's memory keeps the gates of the last row.
    """
    if layer.recorded is None or not computes_gates(layer.form):
        return 1.0
    gate = layer.recorded["gate_max"].astype(np.float64)
    key = f"{layer.id}:gate"
    before = np.concatenate([watch.memory.get(key, gate[:1]), gate[:-1]])
    watch.memory[key] = gate[-1:].copy()
    with np.errstate(all="ignore"):
        return np.asarray(np.fmax(gate / before, 1.0))


def trains_step_sizes(form: Form) -> bool:
    """True if the layer trains a step size for each eigenvalue or channel, instead of computing it from the input."""
    return isinstance(form.dt, str) or form.channels


def step_growth(rows: Rows, layer: LayerRows, setup: Setup) -> Any:
    """The factor by which the next update may multiply each step size dt, an array that can be broadcast to (rows, d_state).

    The layers train the logarithm of dt. AdamW changes it by about the learning rate, whatever its gradient is, so dt grows
    e^lr-fold. SGD changes it by the learning rate times its gradient, without momentum here. 1 if the layer trains no step size,
    or if the step is unknown.
    """
    if rows.lr is None or layer.form is None or not trains_step_sizes(layer.form):
        return 1.0
    rate = setup.recurrent * rows.lr[:, None].astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        if setup.optimizer == "adamw":
            return np.exp(rate)
        if (gradient := layer.gradients.get("dt")) is None:
            return 1.0
        factor = np.exp(rate * np.abs(gradient.astype(np.float64)) * _clipped(rows, setup)[:, None])
    return np.where(np.isnan(factor), 1.0, factor)


def _clipped(rows: Rows, setup: Setup) -> np.ndarray:
    # the factor by which clipping multiplies the gradient, (rows,)
    if setup.grad_clip is None or rows.grad_norm is None:
        return np.ones(len(rows.loss))
    with np.errstate(all="ignore"):
        return np.minimum(1.0, setup.grad_clip / rows.grad_norm.astype(np.float64))
