"""Facts about the whole training that follow from the recorded values of a run, one fact per function: growth of the loss, far
too large gradients and updates, and more. `eigenvalues` holds those about eigenvalues."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from stablessm_core.verdict.inputs import Run, Scalars, Source
from stablessm_core.verdict.levels import CALM, LEVEL_ROWS, usual_level

LOSS_TAIL = 1024  # number of scalar rows before the run's end that are read
SPIKE_ROWS = 20  # number of last rows searched for a gradient spike; also the number of rows before a spike that give its median
SPIKE = 10.0  # minimum ratio of the largest gradient to that median at which the gradient counts as a spike
ROSE = 10.0  # loss divided by the best loss: at this ratio, the training has lost its progress
EARLY = 3  # maximum number of trained steps of a run that diverged because of its first updates
LARGE_UPDATE = 0.5  # minimum size of a large update, as a share of the norm of all weights
SMALL_UPDATE = 0.1  # maximum size of an update that hardly changes the model, as a share of the norm of all weights
FALLS = 3  # minimum number of rows in which a loss below 0 fell to twice its distance from 0
FAR_BELOW = 10.0  # a fallen loss divided by the largest magnitude of the first half of the losses
KICK = 1e3  # gradient norm divided by its median before: at this ratio a single gradient threw the weights
HALF_ROWS = 8  # minimum number of different losses that can prove that all losses are float16 numbers


@dataclass(frozen=True)
class Growth:
    """The loss of the last finite row compared with the best recorded loss, and when it rose to ROSE times the best loss.

    times: the loss divided by the best loss. If the best loss is not positive: 1 plus the rise above it, divided by the larger
    of |best| and of the range of the lower half of the losses.
    """

    step: int
    loss: float
    best: float
    best_step: int
    rose_at: int | None
    jump: float  # the loss at rose_at divided by the loss of the previous row
    record: float  # the loss at rose_at divided by the largest earlier loss
    grad_norm: float
    grad_growth: float  # grad_norm divided by the gradient norm at step `since`
    since: int  # step of the row before rose_at, or of the row SPIKE_ROWS rows before the last finite row
    times: float
    before_rise: float | None = None  # the loss of the row before rose_at
    at_rise: float | None = None  # the loss at rose_at


def loss_growth(source: Source, scalars: Scalars, end: int) -> Growth | None:
    """The growth of the loss up to the last finite row before step `end`. scalars: at least the last LOSS_TAIL rows, or all
    rows of a shorter run."""
    keep = np.flatnonzero((scalars.step < end) & np.isfinite(scalars.loss))
    if not len(keep):
        return None
    step, loss, norm = scalars.step[keep], scalars.loss[keep], scalars.grad_norm[keep]
    early = source.best_loss(int(step[0]))
    largest = source.largest_loss(int(step[0]))
    lows = np.minimum.accumulate(loss if early is None else np.append(early[1], loss))[-len(loss) :]
    scale = np.maximum(np.abs(lows), np.median(loss) - loss.min())
    with np.errstate(all="ignore"):
        times = np.where(lows > 0, loss / lows, np.where(loss > lows, 1 + (loss - lows) / scale, 1.0))
    best = float(lows[-1])
    best_step = early[0] if early is not None and early[1] <= best else int(step[int(np.argmin(loss))])
    rose, jump, record = None, 1.0, 1.0
    ends: tuple[float | None, float | None] = None, None
    at = 0
    if times[-1] >= ROSE:
        calm = np.flatnonzero(times < ROSE)
        at = int(calm[-1]) + 1 if len(calm) else 0
        level, unit = usual_level(loss[max(0, at - LEVEL_ROWS) : at])
        if not at or loss[-1] > level + unit:  # a single low loss is no level from which the others rose
            rose = int(step[at])
        if rose is not None and at > 0:
            before = float(np.max(loss[:at])) if largest is None else max(largest, float(np.max(loss[:at])))
            jump, record = (float(loss[at] / x) if x > 0 else float(times[at]) for x in (float(loss[at - 1]), before))
            ends = float(loss[at - 1]), float(loss[at])
    back = max(0, at - 1) if rose is not None else max(0, len(norm) - 1 - SPIKE_ROWS)
    grown = float(norm[-1] / norm[back]) if norm[back] > 0 and back < len(norm) - 1 else math.nan
    last = int(step[-1]), float(loss[-1])
    return Growth(*last, best, best_step, rose, jump, record, float(norm[-1]), grown, int(step[back]), float(times[-1]), *ends)


@dataclass(frozen=True)
class Kick:
    """A step whose gradient norm was KICK times its median over the rows before, although its loss was usual.

    usual_loss: the median loss of the rows before. None if there are no rows before: then the norm of all weights takes the place
    of the median norm, and nothing is said about the loss.
    """

    step: int
    grad_norm: float
    times: float
    loss: float
    usual_loss: float | None = None


def gradient_kick(run: Run, scalars: Scalars, growth: Growth | None) -> Kick | None:
    """The gradient that threw the weights under SGD: that of the last row before the loss rose. None if it was usual."""
    if run.optimizer != "sgd" or growth is None or run.every > 1:
        return None
    at = int(np.searchsorted(scalars.step, growth.step if growth.rose_at is None else growth.since))
    before = scalars.grad_norm[max(0, at - SPIKE_ROWS) : at]
    if at >= len(scalars):
        return None
    norm, loss = float(scalars.grad_norm[at]), float(scalars.loss[at])
    if at == 0:
        weights = math.nan if scalars.weight_norm is None else float(scalars.weight_norm[0])
        large = math.isfinite(norm) and norm >= KICK * weights > 0
        return Kick(int(scalars.step[0]), norm, norm / weights, loss) if large else None
    if not np.isfinite(before).any():
        return None
    level, scale = usual_level(scalars.loss[max(0, at - LEVEL_ROWS) : at])
    times = norm / float(np.nanmedian(before)) if np.nanmedian(before) > 0 else math.inf
    if not times >= KICK or not abs(loss - level) <= (CALM - 1) * scale:
        return None
    return Kick(int(scalars.step[at]), norm, times, loss, level)


def norm_over_usual(scalars: Scalars, step: int) -> float:
    """The gradient's norm at this step divided by its median over the rows before; NaN if either is unknown."""
    at = int(np.searchsorted(scalars.step, step))
    before = scalars.grad_norm[max(0, at - SPIKE_ROWS) : at]
    before = before[np.isfinite(before)]
    if at >= len(scalars) or scalars.step[at] != step or not len(before):
        return math.nan
    usual = float(np.median(before))
    return float(scalars.grad_norm[at]) / usual if usual > 0 else math.nan


@dataclass(frozen=True)
class Descent:
    """A loss below 0 that fell further in each step. since, began: the row from which it fell so. step, loss: the last row."""

    since: int
    began: float
    step: int
    loss: float


def loss_descent(scalars: Scalars, end: int) -> Descent | None:
    """A loss that fell without a bound: negative, the lowest of all rows, FAR_BELOW times as far from 0 as any loss of the first
    half of the rows, and twice as far in each of the last FALLS rows. None if it did not."""
    keep = (scalars.step < end) & np.isfinite(scalars.loss)
    step, loss = scalars.step[keep], scalars.loss[keep]
    if len(loss) < FALLS + 1 or not loss[-1] < 0 or loss[-1] > loss.min():
        return None
    half = np.abs(loss[: max(1, len(loss) // 2)])
    falls = loss[1:] < 2 * np.minimum(loss[:-1], 0)
    if not falls[-FALLS:].all() or not abs(loss[-1]) >= FAR_BELOW * half.max():
        return None
    steady = np.flatnonzero(~falls)
    since = int(steady[-1]) + 1 if len(steady) else 0
    since += int(loss[since] >= 0)  # a first fall from above 0 may be longer than the next one
    return Descent(int(step[since]), float(loss[since]), int(step[-1]), float(loss[-1]))


def update_size(run: Run, scalars: Scalars, end: int) -> float | None:
    """About how large the update before step `end` could be, relative to the norm of all weights. None if it is not known, or if
    this optimizer has another formula.

    SGD: lr |grad| / |params|, divided by (1 - mu) with momentum mu. AdamW: lr sqrt(number of parameters) / |params|.
    """
    rows = np.flatnonzero(scalars.step < end)
    if not len(rows) or scalars.weight_norm is None or run.optimizer not in ("sgd", "adamw"):
        return None
    at, gap = int(rows[-1]), end - int(scalars.step[rows[-1]])
    size, lr = float(scalars.weight_norm[at]), float(scalars.lr[at])
    if not size > 0:
        return None
    if run.optimizer == "adamw":
        count = (run.environment or {}).get("parameters")
        return None if not count else gap * lr * math.sqrt(count) / size
    norms = scalars.grad_norm[max(0, at - SPIKE_ROWS) : at + 1]
    clip = run.how.grad_clip
    norm = float(np.nanmax(norms)) if np.isfinite(norms).any() else math.nan
    norm = min(norm, clip) if clip else norm
    reach = 1 / (1 - run.momentum) if run.momentum < 1 else math.inf
    return gap * lr * norm * reach / size


def bad_evaluation(source: Source, upto: int | None = None) -> tuple[int, float] | None:
    """The step and the loss of the first evaluation with a loss that is not finite, up to this step if one is given."""
    step, loss = source.evaluations()
    bad = np.flatnonzero(~np.isfinite(loss) & (True if upto is None else step <= upto))
    return (int(step[bad[0]]), float(loss[bad[0]])) if len(bad) else None


def losses_are_float16(scalars: Scalars, end: int) -> bool:
    """Whether every recorded finite loss is a float16 number, and half of them or more are no bfloat16 numbers.

    By chance, one float32 number in 8,192 is a float16 number. Those with at most 8 bits are bfloat16 numbers, too, as the losses
    of a run in bfloat16 and small fractions are; of float16 numbers, one in 8 is.
    """
    losses = scalars.loss[(scalars.step < end) & np.isfinite(scalars.loss)]
    distinct = np.unique(losses)
    if len(distinct) < HALF_ROWS:
        return False
    with np.errstate(over="ignore"):
        half = bool((distinct.astype(np.float16).astype(np.float64) == distinct).all())
        short = distinct.astype(np.float32).view(np.uint32) & 0xFFFF == 0
    return half and float(short.mean()) <= 0.5
