"""The slope of a function at a point, from differences over many distances, or the answer that they do not converge.

One difference proves nothing. Over a long distance the function curves; over a short one rounding decides; a function with
several scales has several slopes. Only slopes that agree with each other over neighbouring distances are the slope of the
function. And if they contradict what was expected, they must not be contradicted by shorter distances themselves: a loss that
wobbles has the slope of its wobble, and over longer distances another one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

NEIGHBOURS = 3  # this many neighbouring distances must agree
FACTOR = 10.0  # ratio of neighbouring distances
AGREEMENT = 0.01  # relative difference of slopes that agree
ABOVE_ROUNDING = 100.0  # a difference of this many roundings of the function tells a slope to about 1 %
NOISE = 1e4  # the roundings of a whole network add up to at most so many of its result
CORNER = 0.1  # difference of the slopes of both sides, divided by their sum, at which a function has a corner
SAME = 0.05  # relative difference of a slope from the expected slope that confirms it
OTHER = 0.1  # relative difference above which two slopes are different


@dataclass(frozen=True)
class Slope:
    """value: the slope; None if the differences do not converge. distance: the middle one of the distances that agree."""

    value: float | None
    distance: float | None = None


def find_slope(
    function: Callable[[float], float], expected: float, *, first: float, shortest: float, longest: float, rounding: float,
    may_go_on: Callable[[], bool] = lambda: True,
) -> Slope:  # fmt: skip
    """The slope of a function at 0.

    Distances are tried outwards from `first`, between `shortest` and `longest`. As soon as NEIGHBOURS of them agree with each
    other and with `expected`, that is the slope. Otherwise all are tried, and the slope differs from `expected` only if the
    distances leave no other reading: there is one plateau, no shorter distance contradicts it by more than rounding, the function
    has no corner there (both sides have this slope), and no two neighbours come near `expected`. rounding: the rounding error of
    the function.
    """
    slopes: dict[int, float] = {}
    changes: dict[int, float] = {}
    bends: dict[int, float] = {}
    base = function(0.0)
    for i in _outwards(first, shortest, longest):
        if not may_go_on():
            return Slope(None)
        h = first * FACTOR**i
        after, before = function(h), function(-h)
        changes[i], bends[i] = after - before, after + before - 2 * base
        above = math.isfinite(changes[i]) and abs(changes[i]) >= ABOVE_ROUNDING * rounding
        slopes[i] = changes[i] / (2 * h) if above else math.nan
        for middle, slope in _plateaus(slopes):
            if _close(slope, expected, SAME):
                return Slope(slope, first * FACTOR**middle)
    found = _plateaus(slopes)
    if not found or not all(_close(slope, found[0][1], OTHER) for _, slope in found):
        return Slope(None)
    middle, slope = found[0]
    straight = {i: 2 * first * FACTOR**i * slope for i in changes}
    contradicted = any(
        not abs(changes[i] - straight[i]) <= max(OTHER * abs(straight[i]), NOISE * rounding) for i in changes if i < middle
    )
    has_corner = all(not abs(bends[one]) <= CORNER * abs(changes[one]) for one in range(middle - 1, middle + 2))
    near = [i for i, other in slopes.items() if _close(other, expected, SAME)]
    if contradicted or has_corner or any(i + 1 in near for i in near):
        return Slope(None)
    return Slope(slope, first * FACTOR**middle)


def _outwards(first: float, shortest: float, longest: float) -> Iterator[int]:
    """0, 1, -1, 2, -2, ...: the exponents of the distances within the limits."""
    low = math.ceil(math.log(shortest / first, FACTOR))
    high = math.floor(math.log(longest / first, FACTOR))
    yield from sorted(range(low, high + 1), key=lambda i: (abs(i), -i))


def _plateaus(slopes: Mapping[int, float]) -> list[tuple[int, float]]:
    """(exponent of the middle distance, slope) where neighbouring slopes agree, shortest distances first."""
    found = []
    for i in sorted(slopes):
        values = [slopes.get(i + offset, math.nan) for offset in range(NEIGHBOURS)]
        middle = values[NEIGHBOURS // 2]
        if all(_close(value, middle, AGREEMENT) for value in values):
            found.append((i + NEIGHBOURS // 2, middle))
    return found


def _close(value: float, other: float, within: float) -> bool:
    """False if one of them is NaN."""
    return abs(value - other) <= within * max(abs(value), abs(other))
