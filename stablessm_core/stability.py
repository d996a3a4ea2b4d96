"""Which quantities decide whether an eigenvalue crosses the boundary, and whether a run dies of it. Pure numpy, no torch.

Relative step and its first-order form say who crosses; the overflow budget says who overflows. d = 1 - |lambda_bar| is the
distance to the stability boundary, negative outside. Arrays have any shape and are read as float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.forms import NO_MAP, Form
from stablessm_core.maps import formulas

LN_LARGEST = float(np.log(np.finfo(np.float32).max))  # 88.72: e to this is the largest float32
BOUNDED = ("tanh",)  # activations whose value stays small however large the state

Array = Any  # numpy.ndarray


def lambda_bar(form: Form, recorded: Mapping[str, Array]) -> Array:
    """The eigenvalues themselves from the layer's `form.inputs`, arrays of one shape: complex where they have an angle."""
    size = form.derive("eigenvalue", recorded)
    return size * np.exp(1j * form.derive("phase", recorded)) if form.complex else size


def relative_slope(form: Form, recorded: Mapping[str, Array]) -> Array:
    """R_f(w) = |d lambda_bar / dw| / (1 - |lambda_bar|): a small step dw of the weight moves the eigenvalue by R_f |dw| of its
    distance to the boundary.

    Discrete |f'(w)| / (1 - |f(w)|); continuous x / (e^x - 1) |f'(w)| / |f(w)| with x = s |f(w)|, which takes the step size or
    gate s as it is. Bilinear: s |f'(w)| / |1 - z/2|^2 / (1 - |lambda_bar|). recorded: the layer's `form.inputs`, arrays of one
    shape, which the result keeps. Infinite on the boundary, NaN outside, and where no map leads from a weight to the eigenvalue.
    """
    if form.map in NO_MAP:
        return np.full(np.shape(next(iter(recorded.values()))), np.nan)
    map_ = formulas(form.map, form.time, np, a=form.a, b=form.b)
    w = np.asarray(recorded["weight"], np.float64)
    with np.errstate(all="ignore"):
        slope = np.abs(map_.derivative(w))
        distance = form.derive("boundary_distance", {kind: np.asarray(recorded[kind], np.float64) for kind in form.inputs})
        if form.time == "discrete":
            return np.where(distance > 0, slope / distance, np.where(distance == 0, np.inf, np.nan))
        dt = np.asarray(form.step_size(recorded), np.float64)
        rate = -map_.f(w)
        if form.rule == "bilinear":
            y = dt * np.asarray(recorded["phase_weight"], np.float64) if form.phase else 0.0
            away = dt * slope / ((1 + dt * rate / 2) ** 2 + y * y / 4)
            return np.where(distance > 0, away / distance, np.where(distance == 0, np.inf, np.nan))
        x = np.clip(dt * rate, None, 700.0)
        along = np.where(x == 0, 1.0, x / np.expm1(x))
        return np.where(rate > 0, along * slope / rate, np.where(rate == 0, np.inf, np.nan))


def relative_step(eigenvalue: Array, distance: Array) -> Array:
    """|lambda_bar_{t+1} - lambda_bar_t| / (1 - |lambda_bar_t|) at each step t but the last, (steps - 1, ...).

    eigenvalue, distance: lambda_bar and 1 - |lambda_bar|, (steps, ...), of consecutive steps. At 1 or more a step may cross the
    boundary, below 1 it cannot. Infinite where an eigenvalue leaves the boundary itself; NaN where it began outside, or where a
    number is not finite.
    """
    lambda_, d = np.asarray(eigenvalue), np.asarray(distance, np.float64)[:-1]
    lambda_ = lambda_.astype(np.complex128 if np.iscomplexobj(lambda_) else np.float64, copy=False)
    with np.errstate(all="ignore"):
        moved = np.abs(np.diff(lambda_, axis=0))
        return np.where(d > 0, moved / d, np.where(d == 0, np.where(moved > 0, np.inf, 0.0), np.nan))


def overflow_budget(length: int, distance: Array) -> Array:
    """length ln|lambda_bar| / 88.72 from the distance 1 - |lambda_bar|, in its shape: 1 where |lambda_bar|^length is float32's
    largest number. Negative inside the boundary, 0 on it.

    A state driven by white input grows like |lambda_bar|^length; measured, it overflows at 1 behind an activation that is
    bounded, and the loss at 1/2 behind one that is not (see `budget_limit`).
    """
    with np.errstate(all="ignore"):
        return length * np.log1p(-np.asarray(distance, np.float64)) / LN_LARGEST


def budget_limit(activation: str) -> float:
    """The overflow budget at which a run overflows: 1, or 1/2 where the normalisation that follows squares a state without
    bound."""
    return 1.0 if activation in BOUNDED else 0.5


def model_limit(model: Mapping[str, Any]) -> float:
    """`budget_limit` of a model's configuration: only StableSSM's layers bound what leaves them, by their activation."""
    own = model.get("layer", "stable_ssm") == "stable_ssm" and not model.get("layers")
    return budget_limit(str(model.get("activation", "tanh")) if own else "identity")


def overflow_eigenvalue(length: int, limit: float = 1.0) -> float:
    """|lambda_bar| whose budget at this length is `limit`: e^(88.72 limit / length). Infinite for very short sequences."""
    exponent = LN_LARGEST * limit / length
    return math.exp(exponent) if exponent < 709 else math.inf


def overflow_length(distance: float, limit: float = 1.0) -> float:
    """The sequence length at which an eigenvalue with this distance would reach the budget `limit`; infinite inside."""
    growth = math.log1p(-distance)
    return LN_LARGEST * limit / growth if growth > 0 else math.inf


def gradient_size(ratio: Array, weight: Array) -> Array:
    """|dL/dw| of each eigenvalue's weight, from what is recorded: |grad|/|w| times |w|. NaN where the weight is 0."""
    with np.errstate(all="ignore"):
        return np.asarray(ratio, np.float64) * np.abs(np.asarray(weight, np.float64))


def predicted_weight_step(
    optimizer: str, lr: float, gradient: Array, momentum: float = 0.0, previous_step: Array = 0.0, *, nesterov: bool = False
) -> Array:
    """|dw| that the next update may make, in the shape of `gradient`: an upper scale with the optimizer's normalisation.

    adamw: lr, whatever the gradient (measured: 99.9 % of steps below 2.1 lr, the largest 3.1 lr). sgd: lr |g|, exact without
    momentum mu; with it lr |g| + mu |dw_prev|, a bound. Nesterov's looks ahead: lr (1 + mu) |g| + mu |dw_prev|, a scale. Decay is
    left out. gradient: |g| as the optimizer gets it, after clipping. previous_step: |dw| of the step before.
    Raises ValueError for an optimizer of another name.
    """
    g = np.abs(np.asarray(gradient, np.float64))
    if optimizer == "adamw":
        return np.full_like(g, lr)
    if optimizer != "sgd":
        raise ValueError(f"optimizer is {optimizer!r}; allowed are adamw, sgd")
    with np.errstate(all="ignore"):
        ahead = 1 + momentum if nesterov and momentum else 1.0
        return lr * ahead * g + momentum * np.abs(np.asarray(previous_step, np.float64))


def predicted_distance(form: Form, recorded: Mapping[str, Array], weight_step: Array) -> Array:
    """The smallest 1 - |lambda_bar| within reach of a weight step of this size, either way, in the weight's shape.

    dt is taken as it is. recorded: the layer's `form.inputs`, arrays of one shape, to which `weight_step` broadcasts. The maps
    are monotone on either side of w = 0, so both ends and, where it is within reach, 0 suffice. `overflow_budget` of the result
    is the predicted budget. NaN where the weight or its step is.
    """
    if form.map in NO_MAP:
        return np.asarray(form.derive("boundary_distance", dict(recorded)))
    w, dw = np.broadcast_arrays(np.asarray(recorded["weight"], np.float64), np.abs(np.asarray(weight_step, np.float64)))
    if form.map == "direct" and form.time == "discrete":  # the same in a tenth of the time: detectors ask at every step
        return 1.0 - (np.abs(w) + dw)
    rest = {kind: np.broadcast_to(np.asarray(recorded[kind], np.float64), w.shape) for kind in form.inputs}

    def distance(weight: Array) -> Array:
        return form.derive("boundary_distance", rest | {"weight": weight})

    with np.errstate(all="ignore"):
        worst = np.minimum(distance(w - dw), distance(w + dw))  # minimum, not fmin: a NaN stays one
        return np.where(np.abs(w) <= dw, np.minimum(worst, distance(np.zeros_like(w))), worst)


def steps_left(form: Form, recorded: Mapping[str, Array], weight_step: Array, length: int, limit: float = 1.0) -> Array:
    """How many steps of this size, all outwards, until the overflow budget reaches `limit`; in the weight's shape, not rounded.

    direct: (lambda* - |lambda|) / |dw| with lambda* = `overflow_eigenvalue`; in continuous time (w* - w) / |dw| with
    w* = 88.72 limit / (length dt). At least so many are left: no death came sooner than 1.25 times this. Infinite for the other
    maps, whose budget cannot exceed 0; 0 where the budget is spent.
    """
    if form.map in NO_MAP:
        return np.full(np.shape(weight_step), np.inf)
    w, dw = np.broadcast_arrays(np.asarray(recorded["weight"], np.float64), np.abs(np.asarray(weight_step, np.float64)))
    if form.map != "direct":
        return np.where(np.isnan(w), np.nan, np.inf)
    with np.errstate(all="ignore"):
        if form.time == "discrete":
            room = overflow_eigenvalue(length, limit) - np.abs(w)
        else:
            dt = np.asarray(form.step_size(recorded), np.float64)
            room = LN_LARGEST * limit / (length * dt) - w
        return np.where(room <= 0, 0.0, room / dw)


def loss_over_best(loss: Array, best: float = math.inf) -> tuple[Array, float]:
    """Loss of consecutive steps over the smallest finite one so far, the step's own included, and the best after them.

    loss: (steps,). best: of the steps before these, infinite where there is none. 1 at a new best. Infinite where the loss is,
    and where the best is 0 and the loss is not; NaN where the loss is, and where the best is negative or there is none.
    """
    values = np.asarray(loss, np.float64)
    if len(values) and np.isfinite(values).all():  # the common case, in a third of the calls
        so_far = np.minimum(np.minimum.accumulate(values), best)
        if so_far[-1] > 0:
            with np.errstate(over="ignore"):
                return values / so_far, float(so_far[-1])
    known = np.minimum.accumulate(np.append(best, np.where(np.isfinite(values), values, np.inf)))
    so_far = known[1:]
    with np.errstate(all="ignore"):
        ratio = np.where(values == so_far, 1.0, values / so_far)
    ratio = np.where((so_far < 0) | np.isinf(so_far), np.nan, ratio)
    return np.where(np.isposinf(values), np.inf, ratio), float(known[-1])


def split_steps(form: Form, recorded: Mapping[str, Array], ratio: Array, lr: Array) -> dict[str, Array]:
    """What each eigenvalue's step consisted of, at each recorded step but the last, arrays (steps - 1, ...).

    recorded: the layer's `form.recorded` at consecutive steps, (steps, ...); ratio: |grad|/|w|, lr: (steps,), the rate of these
    weights; of the last step neither is read. `eigenvalue` and `distance` before the step, `slope` R_f(w), `weight_step` |dw|,
    `first_order` = slope times weight_step, what a small step gives, and `relative_step`, what it was; of the weight's step
    `gradient` |g|, `lr`, and `normalisation` = |dw| / (lr |g|): what the optimizer made of the gradient, 1 under gradient descent
    without momentum, clipping and decay, NaN where the gradient is 0 or not known.
    """
    rows = {kind: np.asarray(values, np.float64) for kind, values in recorded.items()}
    before = {kind: values[:-1] for kind, values in rows.items()}
    weight, distance = rows["weight"], form.derive("boundary_distance", rows)
    lambda_ = form.derive("eigenvalue", rows)
    rate = np.asarray(lr, np.float64)[:-1].reshape(-1, *[1] * (weight.ndim - 1))
    with np.errstate(all="ignore"):
        gradient, moved = gradient_size(np.asarray(ratio)[:-1], before["weight"]), np.abs(np.diff(weight, axis=0))
        slope, expected = relative_slope(form, before), rate * gradient
        return {
            "eigenvalue": lambda_[:-1],
            "distance": distance[:-1],
            "relative_step": relative_step(lambda_bar(form, rows), distance),
            "first_order": slope * moved,
            "slope": slope,
            "weight_step": moved,
            "gradient": gradient,
            "lr": np.broadcast_to(rate, moved.shape),
            "normalisation": np.where(expected > 0, moved / expected, np.nan),
        }
