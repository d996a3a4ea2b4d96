"""The quantities that predict whether an eigenvalue crosses the boundary and whether its state overflows. NumPy only, no torch.

The relative step and its first-order estimate show which eigenvalues may cross the boundary. The overflow budget shows which
states overflow.
d = 1 - |lambda_bar| is the distance to the stability boundary; d is negative for an unstable eigenvalue. Arrays may have any
shape and are converted to float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from stablessm_core.maps import formulas
from stablessm_core.telemetry.boundary import grow_steps, overflow_distance
from stablessm_core.telemetry.forms import GATES, NO_MAP, Form

LN_LARGEST = float(np.log(np.finfo(np.float32).max))  # 88.72, the logarithm of the largest float32
BOUNDED = ("tanh",)  # activations whose output is bounded for any state
AVERAGING = ("rwkv4",)  # layers whose output is bounded because it averages their inputs
# `steps_left` looks at these numbers of steps, and halves the interval that it finds so often
MOST_STEPS, HALVINGS = 1e9, 24
LOOKED_AT = np.concatenate([np.arange(100.0), np.geomspace(100.0, MOST_STEPS, 350)])

Array = Any  # numpy.ndarray


def lambda_bar(form: Form, recorded: Mapping[str, Array]) -> Array:
    """The eigenvalues, complex if the form has an angle. recorded: the layer's `form.inputs`, arrays of one shape."""
    size = form.derive("eigenvalue", recorded)
    return size * np.exp(1j * form.derive("phase", recorded)) if form.complex else size


def relative_slope(form: Form, recorded: Mapping[str, Array]) -> Array:
    """R_f(w) = |d lambda_bar / dw| / (1 - |lambda_bar|). A small weight step dw moves the eigenvalue by the fraction R_f |dw| of
    its distance to the boundary.

    Discrete time: |f'(w)| / (1 - |f(w)|). Continuous time: x / (e^x - 1) |f'(w)| / |f(w)| with x = s |f(w)|, where the step size
    or gate s is held constant. Bilinear rule: s |f'(w)| / |1 - z/2|^2 / (1 - |lambda_bar|).
    recorded: the layer's `form.inputs`, arrays of one shape. The result has the same shape. It is infinite on the boundary. It
    is NaN if the eigenvalue is unstable, or if no map computes the eigenvalue from a weight.
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
    """|lambda_bar_{t+1} - lambda_bar_t| / (1 - |lambda_bar_t|) at every step t except the last, in shape (steps - 1, ...).

    A step with a value of 1 or more may cross the boundary; a step with a value below 1 cannot. The value is infinite if the
    eigenvalue was on the boundary and moved. It is NaN if the eigenvalue was unstable or a number is not finite.
    eigenvalue, distance: lambda_bar and 1 - |lambda_bar| at consecutive steps, both (steps, ...).
    """
    lambda_, d = np.asarray(eigenvalue), np.asarray(distance, np.float64)[:-1]
    lambda_ = lambda_.astype(np.complex128 if np.iscomplexobj(lambda_) else np.float64, copy=False)
    with np.errstate(all="ignore"):
        moved = np.abs(np.diff(lambda_, axis=0))
        return np.where(d > 0, moved / d, np.where(d == 0, np.where(moved > 0, np.inf, 0.0), np.nan))


def update_step(form: Form, recorded: Mapping[str, Array]) -> Array:
    """The relative step that each step's update causes, at every step except the last, in shape (steps - 1, ...).

    The eigenvalues of a layer with a gate also differ between two steps because the batches differ. So both eigenvalues of such a
    step are computed with the gates of that step: only the change of the weights counts. If the layer reports its decay itself
    (map "gate"), the two causes cannot be separated, and the result is NaN, unless the decay was constant over batch and time at
    both steps, so that it does not depend on the input.
    recorded: the layer's `form.inputs` at consecutive steps, arrays of one shape (steps, ...).
    """
    rows = {kind: np.asarray(recorded[kind], np.float64) for kind in form.inputs}
    distance, eigenvalue = form.derive("boundary_distance", rows), lambda_bar(form, rows)
    if not form.gate:
        return relative_step(eigenvalue, distance)
    if form.map == "gate":
        constant = rows["gate_min"] == rows["gate_max"]
        return np.where(constant[:-1] & constant[1:], relative_step(eigenvalue, distance), np.nan)
    updated = lambda_bar(form, {kind: values[:-1] if kind in GATES else values[1:] for kind, values in rows.items()})
    pairs = np.stack([eigenvalue[:-1], updated])
    return np.asarray(relative_step(pairs, np.stack([distance[:-1], distance[:-1]]))[0])


def overflow_budget(length: int, distance: Array) -> Array:
    """length ln|lambda_bar| / 88.72: 1 if |lambda_bar|^length is the largest float32, 0 on the boundary, negative if stable.

    distance: 1 - |lambda_bar|; the result has the same shape. A state driven by white noise grows like |lambda_bar|^length. In
    measurements the state overflows at a budget of 1 if the activation is bounded. If the activation is not bounded, the loss
    overflows at a budget of 1/2 (see `budget_limit`).
    """
    with np.errstate(all="ignore"):
        return length * np.log1p(-np.asarray(distance, np.float64)) / LN_LARGEST


def budget_limit(activation: str) -> float:
    """The overflow budget at which a run overflows: 1 for a bounded activation. Otherwise 1/2, because the normalisation that
    follows (in a bare model the squared error) squares the unbounded state."""
    return 1.0 if activation in BOUNDED else 0.5


def layer_limits(model: Mapping[str, Any], kind: str | None = None) -> list[float]:
    """The `budget_limit` of each layer of a model's configuration, in forward order.

    kind: the kind of the task, None if it is unknown. In a bare model (`model.block`) nothing squares the states unless the loss
    is a squared error (kind "regression"). So for another kind every limit is 1, whatever the activation is.

    A layer of `layer` or `layers` may be a name or a section. A stable_ssm layer without an activation of its own has the
    model's activation; the inner layer of a hyena layer has the identity. Other layers pass their unbounded states on. The
    exception is rwkv4, whose output is a weighted average.
    """
    layers = model.get("layers") or [model.get("layer", "stable_ssm")] * int(model.get("n_layers", 1))
    if model.get("block") == "bare" and kind not in (None, "regression"):
        return [1.0] * len(layers)
    return [_layer_limit(layer, str(model.get("activation", "tanh"))) for layer in layers]


def _layer_limit(layer: str | Mapping[str, Any], activation: str) -> float:
    section = {"name": layer} if isinstance(layer, str) else layer
    if inner := section.get("inner"):
        return _layer_limit(inner, "identity")
    if section["name"] == "stable_ssm":
        return budget_limit(section.get("activation") or activation)
    return 1.0 if section["name"] in AVERAGING else 0.5


def model_limit(model: Mapping[str, Any]) -> float:
    """The smallest of the `layer_limits` of a model's configuration."""
    return min(layer_limits(model))


def overflow_eigenvalue(length: int, limit: float = 1.0) -> float:
    """The |lambda_bar| at which the budget reaches `limit`: e^(88.72 limit / length). Infinite for very short sequences."""
    exponent = LN_LARGEST * limit / length
    return math.exp(exponent) if exponent < 709 else math.inf


def overflow_length(distance: float, limit: float = 1.0) -> float:
    """The sequence length at which an eigenvalue with this distance reaches the budget `limit`; infinite unless unstable."""
    growth = math.log1p(-distance)
    return LN_LARGEST * limit / growth if growth > 0 else math.inf


def gradient_size(ratio: Array, weight: Array) -> Array:
    """|dL/dw| of each eigenvalue's weight: ratio times |w|. ratio: the recorded |grad|/|w|. NaN if the weight is 0."""
    with np.errstate(all="ignore"):
        return np.asarray(ratio, np.float64) * np.abs(np.asarray(weight, np.float64))


def predicted_weight_step(
    optimizer: str, lr: float, gradient: Array, momentum: float = 0.0, previous_step: Array = 0.0, *, nesterov: bool = False
) -> Array:
    """The expected size |dw| of the next update, in the shape of `gradient`. Weight decay is ignored.

    adamw: lr, for any gradient. In measurements 99.9 % of the steps were below 2.1 lr and the largest was 3.1 lr.
    sgd: lr |g|, which is exact. With momentum mu: lr |g| + mu |dw_prev|, an upper bound.
    Nesterov momentum: lr (1 + mu) |g| + mu |dw_prev|, a typical size and not a bound.
    gradient: |g| as the optimizer receives it, after clipping. previous_step: |dw| of the previous step.
    Raises ValueError for any other optimizer.
    """
    g = np.abs(np.asarray(gradient, np.float64))
    if optimizer == "adamw":
        return np.full_like(g, lr)
    if optimizer != "sgd":
        raise ValueError(f"optimizer is {optimizer!r}; allowed: adamw, sgd")
    with np.errstate(all="ignore"):
        ahead = 1 + momentum if nesterov and momentum else 1.0
        return lr * ahead * g + momentum * np.abs(np.asarray(previous_step, np.float64))


def predicted_distance(form: Form, recorded: Mapping[str, Array], weight_step: Array, growth: Array = 1.0) -> Array:
    """The smallest `overflow_distance` that a weight step of this size can reach in either direction, in the weight's shape.

    growth: the factor by which the trained step sizes grow in the same update (`boundary.grow_steps`). The maps are monotone on
    either side of w = 0, so it is enough to try w - dw, w + dw and, if the step can reach it, 0. Call `overflow_budget` with the
    result to get the predicted budget. NaN if the weight or its step is NaN.
    recorded: the layer's `form.inputs`, arrays of one shape; `weight_step` and `growth` are broadcast to this shape.
    """
    if form.map in NO_MAP:
        return np.asarray(overflow_distance(form, dict(recorded)))
    w, dw = np.broadcast_arrays(np.asarray(recorded["weight"], np.float64), np.abs(np.asarray(weight_step, np.float64)))
    if form.map == "direct" and form.time == "discrete":  # the same result as below, ten times as fast
        return 1.0 - (np.abs(w) + dw)
    grown = grow_steps(form, {kind: np.asarray(recorded[kind], np.float64) for kind in form.inputs}, growth)
    rest = {kind: np.broadcast_to(values, w.shape) for kind, values in grown.items()}

    def distance(weight: Array) -> Array:
        return overflow_distance(form, rest | {"weight": weight})

    with np.errstate(all="ignore"):
        worst = np.minimum(distance(w - dw), distance(w + dw))  # np.minimum, unlike np.fmin, returns NaN if either number is NaN
        return np.where(np.abs(w) <= dw, np.minimum(worst, distance(np.zeros_like(w))), worst)


def steps_left(
    form: Form, recorded: Mapping[str, Array], weight_step: Array, length: int, limit: float = 1.0, growth: float = 1.0
) -> Array:
    """How many steps the overflow budget needs to reach `limit`, if every step moves the weight outward by weight_step and
    multiplies the trained step sizes by `growth`. Not rounded, in the weight's shape.

    This is an estimate and no bound: an optimizer also makes longer steps than the usual ones (AdamW up to 3.1 times as long, in
    measurements), and gates that are computed from the input are held constant. Infinite if the budget does not reach the limit
    in 1e9 steps, as for maps whose eigenvalues cannot leave the boundary. 0 if the budget has reached the limit already.
    """
    w, dw = np.broadcast_arrays(np.asarray(recorded["weight"], np.float64), np.abs(np.asarray(weight_step, np.float64)))
    if form.map in NO_MAP:
        return np.full(w.shape, np.inf)
    least = 1 - overflow_eigenvalue(length, limit)

    def reached(steps: Array) -> Array:
        return predicted_distance(form, recorded, steps * dw, growth**steps) <= least

    with np.errstate(all="ignore"):
        # not only the ends of a wide range: with the bilinear rule, a very large step size brings lambda_bar back to -1
        there = reached(LOOKED_AT.reshape(-1, *[1] * w.ndim))
        first = np.argmax(there, axis=0)
        low, high = LOOKED_AT[np.maximum(first, 1) - 1], LOOKED_AT[first]
        for _ in range(HALVINGS):
            middle = (low + high) / 2
            is_reached = reached(middle)
            low, high = np.where(is_reached, low, middle), np.where(is_reached, middle, high)
    return np.where(np.isnan(w) | np.isnan(dw), np.nan, np.where(there.any(axis=0), high, np.inf))


def loss_over_best(loss: Array, best: float = math.inf) -> tuple[Array, float]:
    """Each step's loss divided by the smallest finite loss so far, and that smallest loss after the last step.

    loss: the losses of consecutive steps, (steps,). best: the smallest earlier loss, infinite if there is none. The smallest
    loss includes the step itself, so the ratio is 1 at a new best. The ratio is infinite if the loss is infinite, or if the best
    is 0 and the loss is not. The ratio is NaN if the loss is NaN, or if the smallest loss is negative or does not exist yet.
    """
    values = np.asarray(loss, np.float64)
    if len(values) and np.isfinite(values).all():  # the common case, computed with a third of the numpy calls
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
    """The factors of each eigenvalue's step, at every recorded step except the last. Every array has shape (steps - 1, ...).

    recorded: the layer's `form.recorded` at consecutive steps, (steps, ...). ratio: |grad|/|w|, (steps, ...). lr: the learning
    rate of these weights, (steps,). The last entries of ratio and lr are not read.

    The result has these keys:
    `eigenvalue` and `distance`: lambda_bar and 1 - |lambda_bar| before the step.
    `relative_step`: the actual relative step. `first_order`: slope times weight_step, an estimate for small steps.
    `slope`: R_f(w). `weight_step`: |dw|. `gradient`: |g|. `lr`: the learning rate.
    `normalisation`: |dw| / (lr |g|), the optimizer's effect on the step. It is 1 for gradient descent without momentum, clipping
    and decay, and NaN if the gradient is 0 or unknown.
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
            "relative_step": update_step(form, rows),
            "first_order": slope * moved,
            "slope": slope,
            "weight_step": moved,
            "gradient": gradient,
            "lr": np.broadcast_to(rate, moved.shape),
            "normalisation": np.where(expected > 0, moved / expected, np.nan),
        }
