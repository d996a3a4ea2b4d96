"""Comparisons of two variants, paired by seed: the advantage, its interval, and the p-values of exact tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stablessm_core.statistics import bootstrap_mean, holm, sign_flips, signs, wilson

BY_SIGN = ("largest_rate", "finite", "trained")  # measures with few different values: only the sign of an advantage counts


@dataclass(frozen=True)
class Compared:
    """The advantage of `better` over `than` in `n` pairs: the mean and its bootstrap interval.

    wins, losses: pairs with a positive and with a negative advantage. p: of the two-sided test that neither is better.
    below: how many advantages are smaller than the registered margin. p_below: of the two-sided sign test around the margin.
    """

    better: str
    than: str
    n: int
    mean: float
    low: float
    high: float
    wins: int
    losses: int
    p: float
    below: int
    p_below: float

    def excludes_margin(self, alpha: float) -> bool:
        """Whether the median advantage is shown to be smaller than the margin."""
        return 2 * self.below > self.n and self.p_below < alpha

    @property
    def json(self) -> dict[str, Any]:
        """The comparison as plain data."""
        return asdict(self)


def compare(better: str, than: str, advantages: Sequence[float], *, measure: str, margin: float) -> Compared:
    """Compare the numbers of two variants.

    advantages: one finite number per pair, positive if `better` is better. Measures of BY_SIGN are compared by the exact sign
    test, which is McNemar's test for shares; the others by the exact sign-flip test of the mean.
    """
    values = np.asarray(advantages, np.float64)
    wins, losses, below = int((values > 0).sum()), int((values < 0).sum()), int((values < margin).sum())
    if not len(values):
        return Compared(better, than, 0, 0.0, -np.inf, np.inf, 0, 0, 1.0, 0, 1.0)
    p = signs(wins, losses).p if measure in BY_SIGN else sign_flips(values.tolist(), [0.0] * len(values))
    span = bootstrap_mean(values.tolist())
    p_below = signs(below, len(values) - below).p
    return Compared(better, than, len(values), float(values.mean()), span.low, span.high, wins, losses, p, below, p_below)


def interval_of_share(k: int, n: int) -> tuple[float, float]:
    """Wilson's 95 % interval of k / n."""
    found = wilson(k, n)
    return found.low, found.high


def holm_within(ps: Mapping[str, float], family: int) -> dict[str, float]:
    """Holm's corrected p-values of some tests of a family with `family` tests; the other tests count as p = 1.

    These values are never smaller than those of the whole family, so a study can be judged before the others have run.
    """
    others = {f"other test {number}": 1.0 for number in range(family - len(ps))}
    corrected = holm(dict(ps) | others)
    return {name: corrected[name] for name in ps}
