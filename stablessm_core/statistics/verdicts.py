"""Does a claim about two maps hold, does it not hold, or can the runs not tell?

A claim holds if an exact two-sided test, paired by seed, finds the claimed direction at the level alpha. It does not hold if the
test finds the other direction, or if the difference is within a margin that was stated. Otherwise the runs cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from stablessm_core.statistics.intervals import Share, equivalence, share
from stablessm_core.statistics.largest_rate import LargestRate
from stablessm_core.statistics.outcomes import Outcome
from stablessm_core.statistics.paired import holm, mcnemar, sign_flips, signs

Judgement = Literal["holds", "does not hold", "cannot tell"]
ALPHA = 0.05


@dataclass(frozen=True)
class Claim:
    """A claim about a first and a second map, judged.

    `pairs` counts the seeds that the test used. `first` and `second` are shares of these seeds: those at which the first or the
    second map has the outcome that the claim is about. `direction` is 1 if the runs lean towards the claim, -1 if they lean
    against it, and 0 if neither. `p` is two-sided; None without a pair. `equivalent` is True if the difference is within the
    stated margin. `reason` continues the verdict: "cannot tell: 3 seeds".
    """

    verdict: Judgement
    first: Share
    second: Share
    pairs: int
    direction: int
    p: float | None
    reason: str
    equivalent: bool = False

    def __str__(self) -> str:
        return f"{self.verdict}: {self.reason}"


@dataclass(frozen=True)
class MapComparison:
    """The first map against the second in each outcome: it stays finite at more seeds, it trains at more seeds, and where both
    trained it has the lower loss."""

    finite: Claim
    trained: Claim
    loss: Claim


def bears_larger_rate(
    first: Mapping[int, LargestRate],
    second: Mapping[int, LargestRate],
    *,
    alpha: float = ALPHA,
    margin: float | None = None,
) -> Claim:
    """Whether the first map bears a larger rate than the second, by an exact sign test over the seeds that both have.

    first, second: the largest stable rate of each seed. Seeds with equal rates are ties; the test leaves them out, and both
    shares count them in their totals. margin: factor above 1; the claim does not hold if the median ratio of the rates is shown
    to be within it. Ratios need rates above 0 that are not open ended, so a seed without them leaves the margin untested.
    """
    if margin is not None and not 1 < margin < math.inf:
        raise ValueError(f"margin is {margin}; allowed: a factor above 1")
    seeds = [seed for seed in first if seed in second]
    pairs = [(first[seed], second[seed]) for seed in seeds]
    larger, smaller = sum(a.rate > b.rate for a, b in pairs), sum(a.rate < b.rate for a, b in pairs)
    p = signs(larger, smaller).p
    bounded = all(one.rate > 0 and not one.open_ended for pair in pairs for one in pair)
    same = margin is not None and bounded and _within([math.log(a.rate / b.rate) for a, b in pairs], math.log(margin), alpha)
    return _claim(larger, smaller, len(seeds), p, alpha, same)


def compare_maps(
    first: Mapping[int, Outcome],
    second: Mapping[int, Outcome],
    *,
    alpha: float = ALPHA,
    loss_margin: float | None = None,
) -> MapComparison:
    """The first map against the second, seed by seed: exact McNemar tests of `finite` and `trained`, and an exact sign-flip test
    of the losses of the seeds at which both trained.

    loss_margin: "lower loss" does not hold if the median difference is shown to be within it, in the unit of the loss.
    """
    both = [(first[seed], second[seed]) for seed in first if seed in second]
    finite = [(a.finite, b.finite) for a, b in both if a.finite is not None and b.finite is not None]
    trained = [(a.trained, b.trained) for a, b in both if a.trained is not None and b.trained is not None]
    losses = [(a.loss, b.loss) for a, b in both if a.loss is not None and b.loss is not None]
    return MapComparison(_yes_or_no(finite, alpha), _yes_or_no(trained, alpha), _lower(losses, alpha, loss_margin))


def adjusted(claims: Mapping[str, Claim], alpha: float = ALPHA) -> dict[str, Claim]:
    """The claims judged again as one family, with p-values adjusted by Holm's method. A claim without a p-value is no test and
    stays as it is."""
    p_values = holm({name: claim.p for name, claim in claims.items() if claim.p is not None})
    return {
        name: _judged(replace(claim, p=p_values[name]), alpha, family=len(p_values)) if name in p_values else claim
        for name, claim in claims.items()
    }


def _yes_or_no(pairs: Sequence[tuple[bool, bool]], alpha: float) -> Claim:
    test = mcnemar([a for a, _ in pairs], [b for _, b in pairs])
    return _claim(sum(a for a, _ in pairs), sum(b for _, b in pairs), len(pairs), test.p, alpha, False)


def _lower(pairs: Sequence[tuple[float, float]], alpha: float, margin: float | None) -> Claim:
    p = sign_flips([a for a, _ in pairs], [b for _, b in pairs])
    differences = [a - b for a, b in pairs]
    same = margin is not None and _within(differences, margin, alpha)
    claim = _claim(sum(d < 0 for d in differences), sum(d > 0 for d in differences), len(pairs), p, alpha, same)
    total = math.fsum(differences)  # the test is about the mean, whose sign may differ from that of most pairs
    return _judged(replace(claim, direction=(total < 0) - (total > 0)), alpha)


def _within(differences: Sequence[float], margin: float, alpha: float) -> bool:
    return equivalence(differences, margin, alpha).verdict == "no difference"


def _claim(first: int, second: int, pairs: int, p: float, alpha: float, equivalent: bool) -> Claim:
    direction = (first > second) - (first < second)
    shares = share(first, pairs), share(second, pairs)
    return _judged(Claim("cannot tell", *shares, pairs, direction, p if pairs else None, "", equivalent), alpha)


def _judged(claim: Claim, alpha: float, family: int = 1) -> Claim:
    """The claim with its verdict and reason, from its direction and p-value."""
    seeds = f"{claim.pairs} seed{'' if claim.pairs == 1 else 's'}"
    if claim.p is None:
        return replace(claim, verdict="cannot tell", reason="no pair of runs with the same seed has this outcome")
    many = f", adjusted for {family} comparisons" if family > 1 else ""
    tested = f"p = {claim.p:.2g}{many}, {seeds}"
    if claim.p <= alpha and claim.direction:
        return replace(claim, verdict="holds" if claim.direction > 0 else "does not hold", reason=tested)
    if claim.equivalent:
        return replace(claim, verdict="does not hold", reason=f"the difference is within the stated margin, {seeds}")
    if family * 2.0 ** (1 - claim.pairs) > alpha:  # even if all seeds agreed, p would be above alpha
        return replace(claim, verdict="cannot tell", reason=f"{seeds}{many}" if family > 1 else seeds)
    if claim.p == 1 and claim.first.count == claim.second.count and not claim.direction:
        return replace(claim, verdict="cannot tell", reason=f"no difference was seen, {seeds}")
    return replace(claim, verdict="cannot tell", reason=tested)
