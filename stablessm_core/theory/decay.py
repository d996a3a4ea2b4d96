"""Does a memory function decay exponentially or polynomially? Two curves are fitted, and a stated rule chooses. Uses numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]
FLOOR = 1e-6  # memory below this fraction of its largest value is rounding error of float32
MOST_POINTS = 40
FEWEST_POINTS = 8
LEAST_DROP = 3.0  # if memory falls by a smaller factor, both curves fit
BETTER = 2.0  # the chosen curve's error must be smaller by this factor
WORST_ERROR = 0.7  # in natural logarithms: a typical point is off by a factor of 2
EXPONENTIAL, POLYNOMIAL, CANNOT_TELL = "exponential", "polynomial", "cannot tell"


@dataclass(frozen=True)
class Curve:
    """One fitted curve. amplitude: its value at lag 0. decay: the rate per step, or the power. error: root mean square
    of the natural logarithm of memory over curve; infinite if nothing was fitted."""

    amplitude: float
    decay: float
    error: float


NOTHING = Curve(float("nan"), float("nan"), float("inf"))


@dataclass(frozen=True)
class DecayFit:
    """Which law the memory follows, and both fitted curves.

    kind: "exponential", "polynomial" or "cannot tell". exponential: amplitude e^(-decay t). polynomial: amplitude
    (t + 1)^(-decay). lags: the first and the last fitted lag. points: the number of fitted points. reason: one sentence.
    """

    kind: str
    exponential: Curve
    polynomial: Curve
    lags: tuple[int, int]
    points: int
    reason: str


def fit_decay(memory: ArrayLike, *, floor: float = FLOOR) -> DecayFit:
    """Fit exponential and polynomial decay to a memory function M(t), t = 0, 1, ..., and choose one, or "cannot tell".

    The curves are fitted to the envelope max_(s >= t) M(s), because oscillating memory touches 0, by least squares of the
    logarithm, at up to MOST_POINTS lags with equal ratios. The lags end where the envelope falls below `floor` times its largest
    value. A curve is chosen if its error is at most WORST_ERROR and smaller than that of the other curve by the factor BETTER.
    The answer is "cannot tell" otherwise, and also if fewer than FEWEST_POINTS lags are left or if the memory falls by less than
    the factor LEAST_DROP. Every finite sum of exponentials decays exponentially in the end: the answer describes the fitted
    lags only.

    memory: (lags,), not negative. Raises ValueError for another shape or for negative values. Memory that is not finite gives
    "cannot tell".
    """
    values = np.asarray(memory, np.float64)
    if values.ndim != 1:
        raise ValueError(f"memory has the shape {values.shape}; need (lags,)")
    if (values < 0).any():
        raise ValueError(f"memory contains {values.min():g}; a memory function is not negative")
    if not np.isfinite(values).all():
        first = int(np.argmax(~np.isfinite(values)))
        return _undecided((0, first), 0, f"Memory is not finite at lag {first}.")
    envelope = np.maximum.accumulate(values[::-1])[::-1]
    above = int(np.count_nonzero(envelope > floor * envelope[0])) if len(envelope) else 0
    lags = np.unique(np.round(np.geomspace(1, above, MOST_POINTS)).astype(int) - 1) if above else np.empty(0, int)
    if len(lags) < FEWEST_POINTS:
        return _undecided(
            (0, max(above - 1, 0)),
            len(lags),
            f"Only {len(lags)} lags have measurable memory; at least {FEWEST_POINTS} are needed.",
        )
    y = np.log(envelope[lags])
    exponential, polynomial = _line(lags.astype(np.float64), y), _line(np.log1p(lags), y)
    kind, reason = _choice(exponential, polynomial, float(y[0] - y[-1]), int(lags[-1]))
    return DecayFit(kind, exponential, polynomial, (int(lags[0]), int(lags[-1])), len(lags), reason)


def _line(x: Array, y: Array) -> Curve:
    """The straight line through (x, y), as the curve whose logarithm it is."""
    slope, start = np.polyfit(x, y, 1)
    error = float(np.sqrt(np.mean((start + slope * x - y) ** 2)))
    return Curve(float(np.exp(start)), float(-slope), error)


def _choice(exponential: Curve, polynomial: Curve, drop: float, last: int) -> tuple[str, str]:
    if drop < np.log(LEAST_DROP):
        return CANNOT_TELL, f"Memory falls by a factor of {np.exp(drop):.2g} only, up to lag {last:,}; both curves fit."
    errors = f"The error of the exponential curve is {exponential.error:.2g}, that of the polynomial curve {polynomial.error:.2g}"
    kind, best, other = (
        (EXPONENTIAL, exponential, polynomial) if exponential.error <= polynomial.error else (POLYNOMIAL, polynomial, exponential)
    )
    if best.error > WORST_ERROR:
        return CANNOT_TELL, f"{errors}, in natural logarithms; neither curve fits."
    if other.error < BETTER * best.error:
        return CANNOT_TELL, f"{errors}, in natural logarithms; they are too close to each other."
    return kind, f"{errors}, in natural logarithms, up to lag {last:,}."


def _undecided(lags: tuple[int, int], points: int, reason: str) -> DecayFit:
    return DecayFit(CANNOT_TELL, NOTHING, NOTHING, lags, points, reason)
