"""What the optimizer itself did to the weights, fitted on recorded rows: a factor of each step, and jumps of the learning
rate."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from stablessm_core.verdict.inputs import Layer, Rows, Run, Scalars, Source

DECAY_STEPS = 4  # minimum number of steps that must have multiplied the weights by the same factor
SAME = 0.05  # relative difference up to which two factors are the same
FITTED = 4  # minimum number of weight steps that AdamW's decay must explain
ADAM_STEP = 1.5  # the largest usual step of AdamW, as a multiple of the learning rate
GROWS = 1.05  # minimum size of a factor that makes weights grow
FIT_ROWS = 20  # number of last rows that are fitted
JUMPED = 10.0  # learning rate divided by the largest one before: at this ratio it jumped


@dataclass(frozen=True)
class DecayGrowth:
    """Weights that each step multiplied by `factor`. layer: whose eigenvalue weights; None for all weights. since, before: the
    first fitted step and the norm there. step, after: the last one. product: rate x weight decay; None if the decay is
    unknown."""

    layer: int | None
    factor: float
    since: int
    before: float
    step: int
    after: float
    product: float | None = None
    began: int | None = None  # the first recorded step with this product above 2, without a break since; None if it is unknown


@dataclass(frozen=True)
class RateJump:
    """The step of the jump, the largest learning rate before, the rate after, and the number of rows that kept it."""

    step: int
    before: float
    after: float
    rows: int


def decay_growth(run: Run, source: Source, scalars: Scalars, end: int) -> DecayGrowth | None:
    """The decay that made weights grow in each of the last steps before `end`: of one layer's eigenvalues, or of all weights."""
    of_layers = (_of_layer(run, source, scalars, layer, end) for layer in run.layers)
    one = next((one for one in of_layers if one is not None), None) or _of_all_weights(run, scalars, end)
    if one is None or one.product is None:
        return one
    keep = (scalars.step < end) & np.isfinite(scalars.lr)
    above = scalars.lr[keep] * (one.product / scalars.lr[keep][-1]) > 2
    rows = _rows_at_the_end(above)
    return replace(one, began=int(scalars.step[keep][-rows]) if rows else None)


def _of_layer(run: Run, source: Source, scalars: Scalars, layer: Layer, end: int) -> DecayGrowth | None:
    """The common factor w' / w of a layer's eigenvalue weights.

    It must be the same for all weights within SAME, and in each step. If the decay is configured, it must be the factor
    1 - rate x decay, so that a gradient which happens to do the same is not called a decay.
    """
    if layer.wide:
        return None
    rows = source.layer(layer.index, end - FIT_ROWS, end)
    if (configured := _configured_decay(run, scalars, layer, rows, end)) is not None:
        return configured
    if rows.weight is None or len(rows) < DECAY_STEPS + 1 or (np.diff(rows.step) != 1).any():
        return None
    weight = rows.weight[np.isfinite(rows.weight).all(axis=1)]
    if len(weight) < DECAY_STEPS + 1:
        return None
    with np.errstate(all="ignore"):
        factors = weight[1:] / weight[:-1]
        each = np.median(factors, axis=1)
        same = (np.abs(factors - each[:, None]) <= SAME * np.abs(each)[:, None]).mean(axis=1) >= 0.9
    grows = same & (np.abs(each) >= GROWS) & np.isfinite(each)
    count = _rows_at_the_end(grows)
    if count < DECAY_STEPS:
        return None
    factor, product = float(np.median(each[-count:])), None
    decay, ratio = run.recurrent_weight_decay, run.recurrent_ratio
    if decay is not None and ratio is not None:
        lr = scalars.lr[(scalars.step < end) & np.isfinite(scalars.lr)]
        product = float(lr[-1]) * ratio * decay if len(lr) else 0.0
        if product <= 2 or abs((1 - product) / factor - 1) > 2 * SAME:
            return None
    elif layer.width < 2:
        return None  # one weight alone cannot tell a decay from a gradient
    norms = np.linalg.norm(weight, axis=1)
    steps = rows.step[np.isfinite(rows.weight).all(axis=1)]
    first = len(weight) - 1 - count
    return DecayGrowth(layer.index, factor, int(steps[first]), float(norms[first]), int(steps[-1]), float(norms[-1]), product)


def _configured_decay(run: Run, scalars: Scalars, layer: Layer, rows: Rows, end: int) -> DecayGrowth | None:
    """The factor 1 - rate x decay of AdamW beyond 1, if it explains the recorded steps of nearly all weights: what remains is at
    most the learning rate, which bounds AdamW's own step."""
    decay, ratio = run.recurrent_weight_decay, run.recurrent_ratio
    lr = scalars.lr[(scalars.step < end) & np.isfinite(scalars.lr)]
    if run.optimizer != "adamw" or not decay or not ratio or not len(lr) or rows.weight is None or len(rows) < 2:
        return None
    rate, product = float(lr[-1]) * ratio, float(lr[-1]) * ratio * decay
    weight = rows.weight[np.isfinite(rows.weight).all(axis=1)]
    steps = rows.step[np.isfinite(rows.weight).all(axis=1)]
    gap = set(np.diff(steps).tolist())
    if product <= 2 or len(weight) < 2 or weight[1:].size < FITTED or len(gap) != 1:
        return None
    between = np.abs(1 - product) ** np.arange(gap.pop())  # how later steps multiply the optimizer's own step
    factor = (1 - product) ** len(between)
    explained = np.abs(weight[1:] - factor * weight[:-1]) <= ADAM_STEP * rate * between.sum() + 1e-6 * np.abs(weight[1:])
    if explained.mean() < 0.9 or np.median(np.abs(weight[:-1])) * product <= rate:
        return None
    norms = np.linalg.norm(weight, axis=1)
    return DecayGrowth(
        layer.index, 1 - product, int(steps[0]), float(norms[0]), int(steps[-1]), float(norms[-1]), product
    )  # fmt: skip


def _rows_at_the_end(holds: np.ndarray) -> int:
    """The number of last rows in which it holds without a break."""
    broken = np.flatnonzero(~holds)
    return len(holds) - (int(broken[-1]) + 1 if len(broken) else 0)


def _of_all_weights(run: Run, scalars: Scalars, end: int) -> DecayGrowth | None:
    """The factor 1 - rate x decay, if the norm of all weights grew with it."""
    decay = run.weight_decay
    rows = (scalars.step < end) & np.isfinite(scalars.lr)
    if scalars.weight_norm is None or rows.sum() < 2 or not decay:
        return None
    step, lr, norm = scalars.step[rows], scalars.lr[rows], scalars.weight_norm[rows].astype(np.float64)
    product = float(lr[-1]) * decay
    factor, first = 1 - product, max(0, len(step) - FIT_ROWS)
    if abs(factor) <= 1 or not norm[first] > 0 or not np.isfinite(norm[-1]) or step[-1] - step[first] < DECAY_STEPS:
        return None
    grown, expected = math.log(norm[-1] / norm[first]), math.log(abs(factor)) * int(step[-1] - step[first])
    if not 0.5 <= grown / expected <= 1.5:
        return None
    fitted = math.copysign(math.exp(grown / int(step[-1] - step[first])), factor)
    return DecayGrowth(None, fitted, int(step[first]), float(norm[first]), int(step[-1]), float(norm[-1]), product)


def rate_jump(scalars: Scalars, end: int) -> RateJump | None:
    """The last jump of the learning rate before `end`: to JUMPED times every recorded rate before. A schedule that warms up does
    not jump, and one that restarts returns to a rate that it had."""
    keep = (scalars.step < end) & np.isfinite(scalars.lr) & (scalars.lr > 0)
    step, lr = scalars.step[keep], scalars.lr[keep]
    if len(lr) < 2:
        return None
    before = np.maximum.accumulate(lr)[:-1]
    jumps = np.flatnonzero(lr[1:] >= JUMPED * before)
    if not len(jumps):
        return None
    at = int(jumps[-1]) + 1
    kept = lr[at:] >= JUMPED * before[at - 1]
    rows = int(np.argmin(kept)) if not kept.all() else len(kept)
    return RateJump(int(step[at]), float(before[at - 1]), float(lr[at]), rows)
