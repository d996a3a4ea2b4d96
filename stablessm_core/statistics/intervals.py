"""How certain is a share, a statistic over seeds, or the absence of a difference?"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

Cells = TypeVar("Cells")


@dataclass(frozen=True)
class Interval:
    low: float
    high: float


@dataclass(frozen=True)
class Share:
    """`count` of `total`, with the Wilson interval of the proportion."""

    count: int
    total: int
    interval: Interval

    def __str__(self) -> str:
        return f"{self.count}/{self.total} [{self.interval.low:.2f}, {self.interval.high:.2f}]"


@dataclass(frozen=True)
class Equivalence:
    """Whether a difference is within a margin. `p` is the larger p-value of the two one-sided tests; 1 without a difference."""

    verdict: Literal["no difference", "cannot tell"]
    margin: float
    n: int
    p: float


def wilson(successes: int, total: int, confidence: float = 0.95) -> Interval:
    """The Wilson score interval of a proportion; [0, 1] if `total` is 0.

    (p + z²/2n ± z √(p (1 - p)/n + z²/4n²)) / (1 + z²/n), where p = successes / total, n = total and z is the normal quantile at
    (1 + confidence) / 2. Raises ValueError unless 0 <= successes <= total and 0 < confidence < 1.
    Source: Wilson, "Probable inference, the law of succession, and statistical inference", JASA 22 (1927), 209-212.
    """
    if not 0 <= successes <= total:
        raise ValueError(f"successes is {successes}; allowed: 0 to total, which is {total}")
    z = NormalDist().inv_cdf((1 + _confidence(confidence)) / 2)
    if not total:
        return Interval(0.0, 1.0)
    p, w = successes / total, z * z / total
    middle, half = p + w / 2, z * math.sqrt(p * (1 - p) / total + w / (4 * total))
    low = 0.0 if successes == 0 else (middle - half) / (1 + w)
    high = 1.0 if successes == total else (middle + half) / (1 + w)
    return Interval(low, high)


def share(successes: int, total: int, confidence: float = 0.95) -> Share:
    """The share with its Wilson interval."""
    return Share(successes, total, wilson(successes, total, confidence))


def bootstrap(
    values_by_seed: Mapping[int, Cells],
    statistic: Callable[[Sequence[Cells]], float],
    seed: int = 0,
    *,
    confidence: float = 0.95,
    resamples: int = 2_000,
) -> Interval:
    """The percentile interval of a statistic, from samples of the seeds with replacement.

    values_by_seed: everything that was measured with a seed, for example one number or one list with a number per cell of a
    table. A sample takes all of it together, because the cells of one seed are not independent. statistic: gets one such value
    per drawn seed. seed: of the generator, so that the same call gives the same interval. Raises ValueError without a seed, and
    if the statistic is not finite: a run that is not finite belongs to the outcome `finite`.
    Source: Efron, "Bootstrap methods: another look at the jackknife", Annals of Statistics 7 (1979), 1-26.
    """
    if not values_by_seed:
        raise ValueError("values_by_seed is empty; allowed: at least one seed")
    values = [values_by_seed[key] for key in sorted(values_by_seed)]
    found = [statistic([values[i] for i in sample]) for sample in _samples(len(values), seed, resamples)]
    return _percentiles(np.array(found, dtype=np.float64), confidence)


def bootstrap_mean(values: Sequence[float], seed: int = 0, *, confidence: float = 0.95, resamples: int = 2_000) -> Interval:
    """The `bootstrap` interval of the mean of one number per seed, computed for all samples at once.

    Raises ValueError without a value and for values that are not finite.
    """
    if not len(values):
        raise ValueError("values is empty; allowed: at least one number")
    given = np.asarray(values, dtype=np.float64)
    return _percentiles(given[_samples(len(given), seed, resamples)].mean(axis=1), confidence)


def _samples(count: int, seed: int, resamples: int) -> NDArray[np.int64]:
    """The positions that each sample takes, (resamples, count)."""
    return np.random.default_rng(seed).integers(count, size=(resamples, count))


def _percentiles(found: NDArray[np.float64], confidence: float) -> Interval:
    if not np.isfinite(found).all():
        raise ValueError("the statistic is not finite in a sample; count runs that are not finite in the outcome `finite`")
    tail = (1 - _confidence(confidence)) / 2
    low, high = np.quantile(found, [tail, 1 - tail]).tolist()
    return Interval(low, high)


def equivalence(differences: Sequence[float], margin: float, alpha: float = 0.05) -> Equivalence:
    """Whether the median of paired differences is within (-margin, margin), by two one-sided exact sign tests.

    Each test rejects that the median is at or beyond one end of the margin: p = P(X >= number of differences inside that end),
    X binomial with n trials and probability 1/2. "no difference" if both p-values are at most alpha, otherwise "cannot tell".
    Five differences are the fewest that can show it at alpha 0.05. Raises ValueError for a margin that is not positive and for
    differences that are not finite.
    Source: Schuirmann, "A comparison of the two one-sided tests procedure ...", J. Pharmacokin. Biopharm. 15 (1987), 657-680.
    """
    if not (margin > 0 and math.isfinite(margin)):
        raise ValueError(f"margin is {margin}; allowed: a positive number")
    if not all(map(math.isfinite, differences)):
        raise ValueError("differences has a value that is not finite; count such runs in the outcome `finite`")
    if not differences:
        return Equivalence("cannot tell", margin, 0, 1.0)
    from scipy.stats import binomtest

    inside = (sum(d > -margin for d in differences), sum(d < margin for d in differences))
    p = max(float(binomtest(count, len(differences), 0.5, alternative="greater").pvalue) for count in inside)
    return Equivalence("no difference" if p <= alpha else "cannot tell", margin, len(differences), p)


def _confidence(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence is {confidence}; allowed: a number between 0 and 1")
    return confidence
