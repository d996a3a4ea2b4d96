"""Detects that training explodes: the loss is many times its usual level, or one step is longer than all weights together. The
recurrence may not be the cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Threshold, Watch
from stablessm_core.telemetry.detectors.next_step import may_be_outside, relative_step
from stablessm_core.telemetry.detectors.rows import Rows, steps_held

WINDOW = 16  # number of losses in a median
LASTING = 8  # steps that a high loss must last if every step of the weights is bounded
SUDDEN = 1.5  # a loss of this many times the threshold needs no second step
SMALLEST = 1e-4
LONG = 2.5  # a step of sgd of this many times the norm of all weights is an explosion, whatever the loss is
NOTICEABLE = 0.6  # a high loss is critical if the step is at least this share of the norm of all weights
LEVEL, RECENT, HIGH = "level", "recent", "high"  # keys of the detector's memory


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    loss = rows.loss.astype(np.float64)
    times, level, spread = _times_the_level(loss, watch)
    with np.errstate(invalid="ignore"):
        high = (times >= watch.threshold) & np.isfinite(loss)
        rising = np.concatenate([watch.memory.get(HIGH, np.zeros(2))[:1], times[:-1]]) >= np.sqrt(watch.threshold)
    lasts = steps_held(high, watch.memory.get(HIGH, np.zeros(2))[1])
    if len(loss):
        watch.memory[HIGH] = np.array([times[-1], lasts[-1]])
    relative = relative_step(rows, watch.setup) if watch.steps == "growing" else None
    with np.errstate(invalid="ignore"):
        long = np.zeros(len(loss), bool) if relative is None else (relative >= LONG) & np.isfinite(loss) & np.isfinite(relative)
    if not (high.any() or long.any()):
        return
    quick = high & (rising | (times >= SUDDEN * watch.threshold))
    if watch.steps == "bounded":  # a high loss then nearly always falls again
        quick &= _some_outside(rows)
        holds = quick | (lasts >= LASTING)
    else:
        holds = quick | long
    critical = np.zeros(len(loss), bool)
    if watch.steps == "growing":
        critical = quick | long if relative is None else long | (quick & (relative >= NOTICEABLE))

    def alert(row: int) -> Alert:
        step = rows.step(row)
        if long[row] and not quick[row] and relative is not None:
            message = _of_step(rows, row, relative[row])
            return KIND.alert(step=step, message=message, series=names.GRAD_NORM, value=float(relative[row]))
        message = _message(loss[row], times[row], level[row], spread[row])
        if relative is not None:
            message += f"; the step is {relative[row]:.3g} times as long as all weights"
        found = KIND.alert(step=step, message=message, series=names.TRAIN_LOSS, tensor="loss", value=float(times[row]))
        return found if critical[row] else replace(found, severity="warning")

    yield Condition(None, holds, alert, critical)


def _times_the_level(loss: np.ndarray, watch: Watch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """For each row: how many times the level the loss is, the level, and its spread, (rows,) each; NaN before the first loss.

    The level is the smallest median of up to WINDOW consecutive losses before the row; the spread is its distance to the lower
    quartile of these losses. Times = 1 + (loss - level) / max(|level|, spread), which is loss / level for positive losses and
    also defined for negative losses. A level near 0 counts as SMALLEST times the median of the first WINDOW losses.
    """
    recent = watch.memory.get(RECENT, np.empty(0))
    best, best_spread, start = watch.memory.get(LEVEL, np.array([np.inf, 0.0, 0.0]))
    count = len(loss)
    known = np.concatenate([recent, np.where(np.isfinite(loss), loss, np.inf)])
    # infinity, so that padding is sorted to the end
    padded = known if len(recent) == WINDOW else np.concatenate([np.full(WINDOW - len(recent), np.inf), known])
    windows = np.sort(padded[_windows(count)], axis=1)
    middle = windows[:, WINDOW // 2 - 1 : WINDOW // 2 + 1]
    if len(recent) == WINDOW and middle.sum(axis=1).min(initial=np.inf) >= 2 * best:  # no new level: the common case, and fast
        watch.memory[RECENT] = known[-WINDOW:]
        with np.errstate(all="ignore"):
            times = 1 + (loss - best) / np.float64(max(abs(best), best_spread, SMALLEST * abs(start)))
        return times, np.full(count, best), np.full(count, best_spread)
    n = np.minimum(np.arange(len(recent) + 1, len(known) + 1), WINDOW)  # losses in each row's window
    row = np.arange(count)
    with np.errstate(invalid="ignore"):
        median = (windows[row, (n - 1) // 2] + windows[row, n // 2]) / 2
        spread = median - windows[row, n // 4]
    full = len(recent) < WINDOW <= len(known)  # the first WINDOW losses are known
    starts: np.ndarray | float = start
    if full:
        start = float(median[WINDOW - 1 - len(recent)])
        starts = np.where(row >= WINDOW - len(recent), start, 0.0)
    # the smallest median and its spread, up to each row and before each row
    medians, spreads = np.concatenate([[best], median]), np.concatenate([[best_spread], spread])
    level = np.minimum.accumulate(medians)
    at = np.maximum.accumulate(np.where(medians < np.concatenate([[np.inf], level[:-1]]), np.arange(count + 1), 0))
    spreads = spreads[at]
    watch.memory[RECENT], watch.memory[LEVEL] = known[-WINDOW:], np.array([level[-1], spreads[-1], start])
    level, spread = level[:-1], spreads[:-1]
    with np.errstate(all="ignore"):
        times = 1 + (loss - level) / np.maximum(np.maximum(np.abs(level), spread), SMALLEST * np.abs(starts))
    return np.where(np.isfinite(level), times, np.nan), level, spread


@cache
def _windows(count: int) -> np.ndarray:
    """For each of `count` losses that follow WINDOW losses, the indices of the last WINDOW losses up to it, (count, WINDOW)."""
    return np.arange(count)[:, None] + np.arange(1, WINDOW + 1)


def _some_outside(rows: Rows) -> np.ndarray:
    """True for each row in which an eigenvalue is outside the stability boundary, so that states can explode, (rows,)."""
    outside = np.zeros(len(rows.loss), bool)
    for layer in rows.layers:
        if may_be_outside(layer):
            outside |= (layer.distance.values < 0).any(axis=1)
    return outside


def _of_step(rows: Rows, row: int, relative: float) -> str:
    assert rows.lr is not None
    assert rows.grad_norm is not None
    return (
        f"the step of all weights is {relative:.3g} times as long as the weights themselves: the learning rate is "
        f"{rows.lr[row]:.4g}, the norm of the gradient is {rows.grad_norm[row]:.4g}"
    )


def _message(loss: float, times: float, level: float, spread: float) -> str:
    usual = f"the lowest median of {WINDOW} steps so far"
    if level > 0:
        return f"loss is {loss:.4g}, {times:.3g} times its usual level of {level:.4g} ({usual})"
    unit = "the size of this level" if abs(level) >= spread else f"its usual spread of {spread:.3g}"
    return f"loss is {loss:.4g}; its usual level is {level:.4g} ({usual}), so it rose by {times - 1:.3g} times {unit}"


KIND = AlertKind(
    name="training_explodes",
    severity="critical",
    meaning="The loss is at least `alerts.max_loss_over_best` times its usual level, the lowest median of 16 steps so far, and "
    f"was high in the step before as well, or half as high again. With adamw or clipping, which bound every step, it must stay "
    f"so high for {LASTING} steps unless an eigenvalue is outside the boundary. Or a step of sgd is at least {LONG} times as "
    "long as all weights together. The alert is critical with sgd, if such a step is at least "
    f"{NOTICEABLE} times as long as all weights, and a warning where steps are bounded, because most such runs remain finite.",
    detect=detect,
    threshold=Threshold(
        name="max_loss_over_best",
        default=30.0,
        gt=1,
        description="Alert when the loss is this many times its usual level, the lowest median of 16 steps so far.",
    ),
    comes_before=True,
)
