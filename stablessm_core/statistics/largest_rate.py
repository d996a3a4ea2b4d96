"""The largest learning rate that a map bears, for each seed: by bisection, or from a grid that is already trained."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class LargestRate:
    """The largest stable rate of one seed.

    `rate` is 0 if already the smallest tested rate is unstable. `above` is the next tested rate, which is unstable; it is
    infinite if the largest tested rate is stable, and then the true largest rate may be anything from `rate` up.
    """

    rate: float
    above: float

    @property
    def open_ended(self) -> bool:
        return math.isinf(self.above)


@dataclass
class RateSearch:
    """A bisection for each seed on one grid of rates, driven from outside: train the `proposed` rates, `record` what became of
    them, repeat until `done`.

    Each seed needs about log2(len(grid) + 1) runs. With a `start`, the search first leaps from there by `stride` positions, up
    while the seed is stable and down while it is not, until a stable and an unstable rate enclose the answer. All maps that
    share `low`, `high` and `resolution` share the grid, so their rates can be compared seed by seed. The state is two positions
    per seed, and it is the same after the same records, so a study that was interrupted can repeat its records. Bisection
    assumes that a seed that dies at one rate dies at every larger rate.
    """

    grid: tuple[float, ...]
    stable: dict[int, int] = field(default_factory=dict)  # position of the largest rate known to be stable; -1: none
    unstable: dict[int, int] = field(default_factory=dict)  # position of the smallest rate known to be unstable
    start: int | None = None  # position of the first rate; None for the middle of the grid
    stride: int = 1  # positions of a leap

    def proposed(self) -> dict[int, float]:
        """The next rate of every seed that is not finished."""
        return {seed: self.grid[self._next(seed)] for seed, low in self.stable.items() if self.unstable[seed] - low > 1}

    def rounds_left(self) -> int:
        """How many rounds the slowest seed needs if one more leap encloses the rate of a seed that is not enclosed yet."""
        return max((self._rounds(self.stable[seed], self.unstable[seed]) for seed in self.proposed()), default=0)

    def _next(self, seed: int) -> int:
        low, high = self.stable[seed], self.unstable[seed]
        if self.start is not None:
            if low < 0 and high == len(self.grid):
                return self.start
            if high == len(self.grid):
                return min(low + self.stride, len(self.grid) - 1)
            if low < 0:
                return max(high - self.stride, 0)
        return (low + high) // 2

    def _rounds(self, low: int, high: int) -> int:
        if self.start is None or (low >= 0 and high < len(self.grid)):
            return math.ceil(math.log2(high - low))
        leaps = 2 if low < 0 and high == len(self.grid) else 1
        return leaps + math.ceil(math.log2(self.stride))

    def record(self, seed: int, rate: float, stable: bool) -> None:
        """Note whether a seed was stable at a rate of the grid. A rate outside the open range of the seed changes nothing.
        Raises ValueError for a seed or a rate that the search does not have."""
        if seed not in self.stable:
            raise ValueError(f"seed is {seed}; allowed: {', '.join(map(str, self.stable))}")
        if rate not in self.grid:
            raise ValueError(f"rate is {rate}; allowed: a rate of the grid, from {self.grid[0]:g} to {self.grid[-1]:g}")
        at = self.grid.index(rate)
        if self.stable[seed] < at < self.unstable[seed]:
            (self.stable if stable else self.unstable)[seed] = at

    @property
    def done(self) -> bool:
        return not self.proposed()

    def results(self) -> dict[int, LargestRate]:
        """The largest stable rate of each finished seed."""
        waiting = self.proposed()
        return {seed: self._largest(seed) for seed in self.stable if seed not in waiting}

    def _largest(self, seed: int) -> LargestRate:
        low, high = self.stable[seed], self.unstable[seed]
        return LargestRate(0.0 if low < 0 else self.grid[low], math.inf if high == len(self.grid) else self.grid[high])


def largest_stable_rate(
    seeds: Iterable[int], low: float, high: float, resolution: float = math.sqrt(2), *, start: float | None = None,
    leap: float = 16.0,
) -> RateSearch:  # fmt: skip
    """A search for the largest stable rate of each seed between `low` and `high`.

    start: where the search begins, rounded down to the grid; by default the middle of the grid. leap: the factor by which rates
    grow or shrink from there until the answer is enclosed; without a start there are no leaps.

    The grid is low · resolution^k for k = 0, 1, ... up to `high`. The search ends when the largest stable and the smallest
    unstable rate are neighbours, so the answer is known up to the factor `resolution`. Raises ValueError unless
    0 < low < high, resolution > 1, leap >= resolution and low <= start <= high.
    """
    if not 0 < low < high < math.inf:
        raise ValueError(f"low is {low} and high is {high}; allowed: 0 < low < high")
    if not 1 < resolution < math.inf:
        raise ValueError(f"resolution is {resolution}; allowed: a factor above 1")
    if start is not None and not low <= start <= high:
        raise ValueError(f"start is {start}; allowed: {low:g} to {high:g}")
    if not resolution <= leap < math.inf:
        raise ValueError(f"leap is {leap}; allowed: a factor of at least the resolution, {resolution:g}")
    count = math.floor(math.log(high / low) / math.log(resolution) + 1e-9) + 1
    grid = tuple(float(f"{low * resolution**k:.6g}") for k in range(count))
    chosen = list(dict.fromkeys(seeds))
    at = None if start is None else max(i for i, rate in enumerate(grid) if rate <= start or i == 0)
    stride = max(1, round(math.log(leap) / math.log(resolution)))
    return RateSearch(grid, dict.fromkeys(chosen, -1), dict.fromkeys(chosen, len(grid)), at, stride)


def largest_rate_on_grid(stable: Mapping[float, bool]) -> LargestRate:
    """The largest stable rate of one seed that was trained at every rate of a grid: the last rate before the first unstable one.

    stable: for each tested rate, whether the run was stable. A stable rate above an unstable one does not count, because it was
    reached by luck. Raises ValueError without a rate.
    """
    if not stable:
        raise ValueError("stable is empty; allowed: at least one rate")
    largest = 0.0
    for rate in sorted(stable):
        if not stable[rate]:
            return LargestRate(largest, rate)
        largest = rate
    return LargestRate(largest, math.inf)
