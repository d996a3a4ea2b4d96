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
SMALL_UPDATE = 0.1  # maximum size of an update that hardly changes the model, as a share of the norm of all weights
DECAY_STEPS = 4  # minimum number of steps over which weight decay shows that it makes the weights grow
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
        rose = int(step[at])
        if at > 0:
            before = float(np.max(loss[:at])) if largest is None else max(largest, float(np.max(loss[:at])))
            jump, record = (float(loss[at] / x) if x > 0 else float(times[at]) for x in (float(loss[at - 1]), before))
            ends = float(loss[at - 1]), float(loss[at])
    back = max(0, at - 1) if rose is not None else max(0, len(norm) - 1 - SPIKE_ROWS)
    grown = float(norm[-1] / norm[back]) if norm[back] > 0 and back < len(norm) - 1 else math.nan
    last = int(step[-1]), float(loss[-1])
    return Growth(*last, best, best_step, rose, jump, record, float(norm[-1]), grown, int(step[back]), float(times[-1]), *ends)


@dataclass(frozen=True)
class Kick:
    """A step whose gradient norm was KICK times its median over the rows before, although its loss was usual. Without rows
    before, the norm of all weights takes the place of the median. against: what the norm is compared with, for a text."""

    step: int
    grad_norm: float
    times: float
    loss: float
    against: str = "its median before"


def gradient_kick(run: Run, scalars: Scalars, growth: Growth | None) -> Kick | None:
    """The gradient that threw the weights under SGD: that of the last row before the loss rose. None if it was usual."""
    if run.optimizer != "sgd" or growth is None or run.every > 1:
        return None
    at = int(np.searchsorted(scalars.step, growth.step if growth.rose_at is None else growth.since))
    before = scalars.grad_norm[max(0, at - SPIKE_ROWS) : at]
    if at >= len(scalars):
        return None
    if at == 0 and scalars.weight_norm is not None:
        norm, weights = float(scalars.grad_norm[0]), float(scalars.weight_norm[0])
        large = math.isfinite(norm) and norm >= KICK * weights > 0
        return (
            Kick(int(scalars.step[0]), norm, norm / weights, float(scalars.loss[0]), "the norm of all weights") if large else None
        )
    if not np.isfinite(before).any():
        return None
    level, scale = usual_level(scalars.loss[max(0, at - LEVEL_ROWS) : at])
    norm, loss = float(scalars.grad_norm[at]), float(scalars.loss[at])
    times = norm / float(np.nanmedian(before)) if np.nanmedian(before) > 0 else math.inf
    if not times >= KICK or loss > level + (CALM - 1) * scale:
        return None
    return Kick(int(scalars.step[at]), norm, times, loss)


def decay_growth(run: Run, scalars: Scalars, end: int) -> tuple[float, float, float] | None:
    """(factor, norm before, norm after) if the weight decay itself made the weights grow: each step multiplies the weights by
    1 - lr x weight_decay, and |factor| > 1. None if it did not, if the recorded norms grew otherwise, or after few steps."""
    decay = float(run.config["optimizer"].get("weight_decay") or 0.0)
    rows = (scalars.step < end) & np.isfinite(scalars.lr)
    if scalars.weight_norm is None or rows.sum() < 2 or decay == 0:
        return None
    step, lr, norm = scalars.step[rows], scalars.lr[rows], scalars.weight_norm[rows].astype(np.float64)
    factor = 1 - float(lr[-1]) * decay
    first = max(0, len(step) - SPIKE_ROWS)
    if abs(factor) <= 1 or not norm[first] > 0 or not np.isfinite(norm[-1]) or step[-1] - step[first] < DECAY_STEPS:
        return None
    grown, expected = math.log(norm[-1] / norm[first]), math.log(abs(factor)) * int(step[-1] - step[first])
    return (factor, float(norm[first]), float(norm[-1])) if 0.5 <= grown / expected <= 1.5 else None


def update_size(run: Run, scalars: Scalars, end: int) -> float | None:
    """The largest possible size of the update before step `end`, relative to the norm of all weights. None if it is not known.

    SGD: lr |grad| / |params|, divided by (1 - mu) with momentum mu. AdamW: lr sqrt(number of parameters) / |params|.
    """
    rows = np.flatnonzero(scalars.step < end)
    if not len(rows) or scalars.weight_norm is None:
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


def bad_evaluation(source: Source, upto: int) -> tuple[int, float] | None:
    """The step and the loss of the first evaluation with a loss that is not finite, up to this step."""
    step, loss = source.evaluations()
    bad = np.flatnonzero((step <= upto) & ~np.isfinite(loss))
    return (int(step[bad[0]]), float(loss[bad[0]])) if len(bad) else None


def losses_are_float16(scalars: Scalars, end: int) -> bool:
    """Whether every recorded finite loss is a float16 number. By chance, one float32 number in 8,192 is a float16 number."""
    losses = scalars.loss[(scalars.step < end) & np.isfinite(scalars.loss)]
    distinct = np.unique(losses)
    with np.errstate(over="ignore"):
        return len(distinct) >= HALF_ROWS and bool((distinct.astype(np.float16).astype(np.float64) == distinct).all())
