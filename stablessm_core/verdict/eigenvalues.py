"""Facts about eigenvalues that follow from the recorded values of a run, one fact per function: boundary crossings, the
eigenvalue furthest outside, gradient spikes, and changes of decay and step size."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stablessm_core.telemetry.forms import NO_MAP
from stablessm_core.telemetry.stability import (
    gradient_size,
    overflow_budget,
    predicted_weight_step,
    relative_slope,
    update_step,
)
from stablessm_core.verdict.facts import SPIKE_ROWS
from stablessm_core.verdict.inputs import Layer, Run, Scalars, Source

ROWS_OF_LAYER = 400_000  # maximum number of distances of a layer that are read to find where a trouble began


@dataclass(frozen=True, kw_only=True)
class Crossing:
    """The first time that an eigenvalue was outside the boundary.

    step: the first recorded step at which the eigenvalue was outside. value: lambda_bar at that step. outside: the number of
    the layer's eigenvalues outside the boundary at that step. width: the number of all eigenvalues of the layer. wide: True if
    only the most extreme eigenvalues are recorded, so that more may have been outside. The previous recorded row, if any, gives
    before (the row's step), value_before, distance_before, lr, gradient (|g|), slope (R_f) and weight_step (the |dw| that the
    optimizer's next step could make). relative_step: the relative step of the crossing. A field is None if the recorded rows do
    not contain its value.
    """

    layer: int
    eigenvalue: int
    step: int
    value: float | None
    distance: float
    outside: int
    width: int
    wide: bool = False
    before: int | None = None
    value_before: float | None = None
    distance_before: float | None = None
    relative_step: float | None = None
    slope: float | None = None
    weight_step: float | None = None
    lr: float | None = None
    gradient: float | None = None
    exact: bool = True  # False if the eigenvalue may have crossed before, in a step that was not recorded

    @property
    def predicted(self) -> float | None:
        """The first-order estimate R_f |dw| of the relative step that a weight step of weight_step causes."""
        return None if self.slope is None or self.weight_step is None else self.slope * self.weight_step


@dataclass(frozen=True)
class Spike:
    """The largest |g| of an eigenvalue in the last SPIKE_ROWS rows. growth: this |g| divided by the median of the SPIKE_ROWS
    rows before the spike."""

    step: int
    size: float
    growth: float
    ratio: float
    value: float | None  # lambda_bar at that step
    zero_after: int  # number of later rows in which the gradient is exactly 0
    rows_after: int  # number of later rows


@dataclass(frozen=True)
class Worst:
    """The eigenvalue that is furthest outside the boundary, or nearest to the boundary if all are inside, at one recorded
    step."""

    step: int
    layer: int
    eigenvalue: int
    distance: float
    value: float | None
    budget: float | None
    outside: int  # number of eigenvalues outside the boundary in all layers together
    known: int  # number of eigenvalues with a recorded distance
    layers_outside: tuple[int, ...]
    on_boundary: int = 0  # number of eigenvalues whose distance is exactly 0


def first_crossing(run: Run, source: Source, layer: Layer, eigenvalue: int | None = None) -> Crossing | None:
    """The first crossing of the layer, or of this eigenvalue. None if no eigenvalue was ever recorded outside the boundary."""
    if layer.may_exceed:
        return None
    step = source.first_outside(layer.index, eigenvalue)
    if step is None:
        return None
    rows = source.layer(layer.index, step - 2 * run.recorded_every, step)
    at = len(rows) - 1
    outside = int((rows.distance[at] < 0).sum())
    if eigenvalue is None:
        eigenvalue, distance = rows.worst(at) or (0, math.nan)
    else:
        distance = float(rows.distance_of(eigenvalue)[at])
    found = {
        "layer": layer.index,
        "eigenvalue": eigenvalue,
        "step": step,
        "value": None if rows.eigenvalue is None else float(rows.eigenvalue[at, eigenvalue]),
        "distance": distance,
        "outside": outside,
        "width": layer.width,
        "wide": layer.wide,
        "exact": step <= run.first_step or (int(rows.step[at] - rows.step[at - 1]) == 1 if at > 0 else run.recorded_every == 1),
    }
    if at == 0 or rows.eigenvalue is None or rows.weight is None or layer.form is None or rows.recorded is None:
        return Crossing(**found)  # type: ignore[arg-type]
    recorded = {kind: values[at - 1 : at + 1, eigenvalue] for kind, values in rows.recorded.items()}
    one = {kind: values[0] for kind, values in recorded.items()}
    scalars = source.scalars(int(rows.step[at - 1]), int(rows.step[at - 1]))
    lr = _recurrent_lr(run, scalars)
    gradient = None if rows.ratio is None else float(gradient_size(rows.ratio[at - 1, eigenvalue], one["weight"]))
    moved = float(abs(rows.weight[at - 1, eigenvalue] - rows.weight[at - 2, eigenvalue])) if at >= 2 else 0.0
    step_size = None if lr is None else _weight_step(run, lr, gradient, moved, scalars)
    consecutive = run.every == 1 and rows.step[at] - rows.step[at - 1] == 1
    relative = update_step(layer.form, recorded)[0] if consecutive else None
    return Crossing(
        **found,  # type: ignore[arg-type]
        before=int(rows.step[at - 1]),
        value_before=float(rows.eigenvalue[at - 1, eigenvalue]),
        distance_before=float(rows.distance[at - 1, eigenvalue]),
        relative_step=None if relative is None else float(relative),
        slope=float(relative_slope(layer.form, one)) if consecutive else None,
        weight_step=step_size if consecutive else None,
        lr=lr,
        gradient=gradient,
    )


def _recurrent_lr(run: Run, scalars: Scalars) -> float | None:
    """The learning rate of the eigenvalue weights. Only the common learning rate is recorded, but the ratio of the two rates is
    constant."""
    if not len(scalars):
        return None
    ratio = run.recurrent_ratio
    return None if ratio is None else float(scalars.lr[-1]) * ratio


def _weight_step(run: Run, lr: float, gradient: float | None, moved: float, scalars: Scalars) -> float | None:
    if run.optimizer not in ("adamw", "sgd") or (run.optimizer == "sgd" and gradient is None):
        return None
    clip = run.how.grad_clip
    norm = float(scalars.grad_norm[-1]) if len(scalars) else math.nan
    clipped = (gradient or 0.0) * (clip / norm if clip and norm > clip else 1.0)
    nesterov = bool(run.how.nesterov)
    return float(predicted_weight_step(run.optimizer, lr, clipped, run.momentum, moved, nesterov=nesterov))


def worst_eigenvalue(run: Run, source: Source, step: int, only: int | None = None) -> Worst | None:
    """The worst eigenvalue of all layers, or of layer `only`, at this step. Layers that may exceed the boundary do not count.
    None if no distance is recorded at this step."""
    found, outside, known, on_it, layers = None, 0, 0, 0, []
    for layer in run.layers:
        if layer.may_exceed or (only is not None and layer.index != only):
            continue
        rows = source.layer(layer.index, step, step)
        nearest = rows.worst(0) if len(rows) else None
        if nearest is None:
            continue
        out = int((rows.distance[0] < 0).sum())
        outside, known = outside + out, known + int(np.isfinite(rows.distance[0]).sum())
        on_it += int((rows.distance[0] == 0).sum())
        layers += [layer.index] if out else []
        if found is None or nearest[1] < found[2]:
            value = None if rows.eigenvalue is None else float(rows.eigenvalue[0, nearest[0]])
            found = (layer.index, nearest[0], nearest[1], value)
    if found is None:
        return None
    index, eigenvalue, distance, value = found
    budget = None if run.length is None else float(overflow_budget(run.length, distance))
    return Worst(step, index, eigenvalue, distance, value, budget, outside, known, tuple(layers), on_it)


def gradient_spike(source: Source, layer: Layer, eigenvalue: int, end: int) -> Spike | None:
    """The largest |g| of this eigenvalue shortly before step `end`. None if no gradients or too few rows are recorded."""
    rows = source.layer(layer.index, end - 3 * SPIKE_ROWS, end - 1)
    if rows.weight is None or rows.ratio is None or len(rows) < 3:
        return None
    g = gradient_size(rows.ratio[:, eigenvalue], rows.weight[:, eigenvalue])
    late = g[-SPIKE_ROWS:]
    if np.isnan(late).all():
        return None
    at = len(g) - len(late) + int(np.nanargmax(late))
    before = g[max(0, at - SPIKE_ROWS) : at]
    if not len(before):
        return None
    base = float(np.nanmedian(before))
    growth = float(g[at]) / base if base > 0 else (math.inf if g[at] > 0 else 1.0)
    value = None if rows.eigenvalue is None else float(rows.eigenvalue[at, eigenvalue])
    zero = int((g[at + 1 :] == 0).sum())
    return Spike(int(rows.step[at]), float(g[at]), growth, float(rows.ratio[at, eigenvalue]), value, zero, len(g) - at - 1)


def largest_reach(run: Run, source: Source, end: int) -> float | None:
    """The largest expected relative step R_f |dw| of any eigenvalue inside the boundary, over the recorded rows of all layers
    shortly before their first crossing and before step `end`. None if it cannot be computed."""
    if run.optimizer not in ("adamw", "sgd") or run.every > 1 or run.recurrent_ratio is None:
        return None
    largest = math.nan
    for layer in run.layers:
        if layer.wide or layer.form is None or layer.may_exceed:
            continue
        shown = source.first_outside(layer.index)
        for upto in {end, *(() if shown is None else (shown,))}:
            largest = np.fmax(largest, _reach(run, source, layer, max(1, upto - SPIKE_ROWS), upto - 1))
    return float(largest) if math.isfinite(largest) else None


def _reach(run: Run, source: Source, layer: Layer, low: int, high: int) -> float:
    rows, scalars = source.layer(layer.index, low, high), source.scalars(low, high)
    if not len(rows) or rows.recorded is None or rows.weight is None or len(scalars) != len(rows) or layer.form is None:
        return math.nan
    lr = scalars.lr * (1.0 if run.recurrent_ratio is None else run.recurrent_ratio)
    if run.optimizer == "sgd":
        if rows.ratio is None:
            return math.nan
        clip = run.how.grad_clip
        kept = np.ones(len(rows)) if not clip else np.minimum(1.0, clip / np.maximum(scalars.grad_norm, 1e-30))
        moved = lr[:, None] * gradient_size(rows.ratio, rows.weight) * kept[:, None] / max(1e-3, 1 - run.momentum)
    else:
        moved = np.broadcast_to(lr[:, None], rows.weight.shape)
    with np.errstate(all="ignore"):
        reach = relative_slope(layer.form, rows.recorded) * moved
    reach = reach[np.isfinite(reach)]
    return float(reach.max()) if reach.size else math.nan


@dataclass(frozen=True)
class DecayChange:
    """The factor by which an eigenvalue's decay -ln|lambda_bar| has changed since its first recorded row.

    decay = weight * step. weight: the factor by which the rate r(w) changed. step: the factor by which the step size or gate
    changed. what: the name of that factor in texts, "gate" or "step size".
    """

    since: int
    decay: float
    weight: float
    step: float
    what: str


def decay_change(run: Run, source: Source, worst: Worst) -> DecayChange | None:
    """How the decay of the worst eigenvalue changed. None if the eigenvalue's layer does not multiply a rate by a step size or
    gate."""
    layer = next(layer for layer in run.layers if layer.index == worst.layer)
    form = layer.form
    if form is None or layer.wide or form.map in NO_MAP or form.time != "continuous" or form.rule != "zoh":
        return None
    first, last = (
        source.layer(layer.index, 0, run.first_step + run.recorded_every),
        source.layer(layer.index, worst.step, worst.step),
    )
    if not len(first) or not len(last) or first.step[0] == last.step[0]:
        return None
    ends = [{kind: values[0, worst.eigenvalue] for kind, values in (rows.recorded or {}).items()} for rows in (first, last)]
    with np.errstate(all="ignore"):
        decay = [np.float64(form.decay(one, np)) for one in ends]
        step = [np.float64(form.step_size(one)) for one in ends]
        parts = float(decay[1] / decay[0]), float(decay[1] / step[1] / (decay[0] / step[0])), float(step[1] / step[0])
    if not all(math.isfinite(part) for part in parts):
        return None
    return DecayChange(int(first.step[0]), *parts, "gate" if form.gate else "step size")


def largest_step_sizes(run: Run, source: Source, layer: Layer, end: int) -> tuple[float, float, int] | None:
    """(largest dt of the layer in the first recorded row, largest dt of the layer at step `end`, eigenvalue with the latter
    dt)."""
    first, last = source.layer(layer.index, 0, run.first_step + run.recorded_every), source.layer(layer.index, end, end)
    if not len(last) or last.dt is None or np.isnan(last.dt[0]).all():
        return None
    which = int(np.nanargmax(last.dt[0]))
    began = float(np.nanmax(first.dt[0])) if len(first) and first.dt is not None else math.nan
    return began, float(last.dt[0, which]), which


@dataclass(frozen=True)
class LargeWeight:
    """An eigenvalue weight that is no ordinary number, and the recorded step that shows it."""

    step: int
    layer: int
    eigenvalue: int
    weight: float


def large_weight(run: Run, source: Source, step: int, least: float) -> LargeWeight | None:
    """The largest finite eigenvalue weight recorded at this step, or at the row before, if its magnitude is `least` or more."""
    largest = None
    for layer in run.layers:
        rows = source.layer(layer.index, step - run.every, step)
        if rows.weight is None or not len(rows):
            continue
        size = np.where(np.isfinite(rows.weight), np.abs(rows.weight), 0.0)
        row, column = (int(i) for i in np.unravel_index(int(size.argmax()), size.shape)) if size.size else (0, 0)
        if size.size and size[row, column] >= least and (largest is None or size[row, column] > abs(largest.weight)):
            largest = LargeWeight(int(rows.step[row]), layer.index, column, float(rows.weight[row, column]))
    return largest
