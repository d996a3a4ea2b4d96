"""Exact tests of two maps paired by seed, and the adjustment of several p-values."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

EXACT_PAIRS = 15  # the sign-flip test tries all 2^n sign vectors up to this many pairs, and draws that many beyond
BATCH = 2_000_000  # flipped differences in memory at a time


@dataclass(frozen=True)
class Paired:
    """The discordant pairs, and the two-sided p-value of the hypothesis that each direction is equally likely."""

    first_only: int
    second_only: int
    p: float


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> Paired:
    """The exact McNemar test of two yes-or-no outcomes paired by seed; p is 1 without a discordant pair.

    p = min(1, 2 P(X <= min(b, c))), X binomial with b + c trials and probability 1/2, where b and c count the pairs of which
    only the first or only the second is true. Raises ValueError for sequences of different lengths.
    Source: McNemar, Psychometrika 12 (1947), 153-157; the exact form is the sign test of the discordant pairs.
    """
    return signs(*discordant(a, b))


def discordant(a: Sequence[bool], b: Sequence[bool]) -> tuple[int, int]:
    """How many pairs have only the first, and only the second, outcome true. Raises ValueError for different lengths."""
    _same_length(a, b)
    pairs = list(zip(a, b, strict=True))
    return sum(x and not y for x, y in pairs), sum(y and not x for x, y in pairs)


def signs(first: int, second: int) -> Paired:
    """The exact two-sided sign test of `first` pairs in one direction and `second` in the other. Ties are left out."""
    if not first + second:
        return Paired(0, 0, 1.0)
    from scipy.stats import binomtest

    return Paired(first, second, float(binomtest(first, first + second, 0.5).pvalue))


def sign_flips(a: Sequence[float], b: Sequence[float]) -> float:
    """The two-sided p-value of the sign-flip test of the paired differences a - b; 1 without a pair.

    The share of the 2^n sign vectors s for which |mean(s (a - b))| is at least |mean(a - b)|. Up to EXACT_PAIRS pairs all sign
    vectors are tried; beyond, 2^EXACT_PAIRS are drawn with a fixed seed. Raises ValueError for sequences of different lengths
    and for values that are not finite: such runs belong to the outcome `finite`.
    Source: Fisher, The Design of Experiments (1935), section 21.
    """
    _same_length(a, b)
    for name, values in (("a", a), ("b", b)):
        wrong = [i for i, value in enumerate(values) if not math.isfinite(value)]
        if wrong:
            where = f"{name}[{wrong[0]}] is {values[wrong[0]]}"
            raise ValueError(f"{where}; allowed: finite numbers, because runs that are not finite belong to the outcome `finite`")
    differences = np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64)
    if len(differences) < 2:  # flipping the only sign changes nothing, and scipy refuses a single pair
        return 1.0
    from scipy.stats import permutation_test

    done = permutation_test(
        (differences,),
        _mean,
        permutation_type="samples",
        vectorized=True,
        n_resamples=2**EXACT_PAIRS,
        batch=max(1, BATCH // len(differences)),
        rng=np.random.default_rng(0),
    )
    return min(1.0, float(done.pvalue))


def holm(p_values: Mapping[str, float], family: int | None = None) -> dict[str, float]:
    """The p-values adjusted for a family of m tests, in the order given.

    With p_(1) <= ... <= p_(m): adjusted p_(i) = max over j <= i of min(1, (m - j + 1) p_(j)). Rejecting where the adjusted value
    is at most alpha keeps the chance of any false rejection in the family at or below alpha. family: m, if these are only some of
    the family's tests; the others then count as if their p-values were larger, which keeps that promise. Raises ValueError for a
    value outside [0, 1], and for a family smaller than the number of values.
    Source: Holm, "A simple sequentially rejective multiple test procedure", Scand. J. Statist. 6 (1979), 65-70.
    """
    for name, p in p_values.items():
        if not 0 <= p <= 1:
            raise ValueError(f"the p-value of {name!r} is {p}; allowed: 0 to 1")
    tests = len(p_values) if family is None else family
    if tests < len(p_values):
        raise ValueError(f"family is {family}; allowed: at least {len(p_values)}, the number of p-values")
    adjusted, largest = {}, 0.0
    for rank, name in enumerate(sorted(p_values, key=lambda name: p_values[name])):
        largest = max(largest, min(1.0, (tests - rank) * p_values[name]))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def _mean(values: NDArray[np.float64], axis: int) -> NDArray[np.float64]:
    mean: NDArray[np.float64] = np.mean(values, axis=axis)
    return mean


def _same_length(a: Sequence[object], b: Sequence[object]) -> None:
    if len(a) != len(b):
        raise ValueError(f"a has {len(a)} values and b has {len(b)}; allowed: one value of each per seed")
