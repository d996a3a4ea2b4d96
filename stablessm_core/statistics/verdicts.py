"""Does a claim about two maps hold, does it not hold, or can the runs not tell?

A claim holds if an exact two-sided test, paired by seed, finds the claimed direction at the level alpha. It does not hold if the
test finds the other direction, or if the difference is within a margin that was stated. Otherwise the runs cannot tell.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypeVar

from stablessm_core.statistics.intervals import Share, equivalence, share
from stablessm_core.statistics.largest_rate import LargestRate
from stablessm_core.statistics.outcomes import Outcome
from stablessm_core.statistics.paired import holm, sign_flips, signs

Judgement = Literal["holds", "does not hold", "cannot tell"]
ALPHA = 0.05
T = TypeVar("T", LargestRate, Outcome)


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
    first: Mapping[int, LargestRate | Sequence[LargestRate]],
    second: Mapping[int, LargestRate | Sequence[LargestRate]],
    *,
    alpha: float = ALPHA,
    margin: float | None = None,
) -> Claim:
    """Whether the first map bears a larger rate than the second, by an exact sign test over the seeds that both have.

    first, second: the largest stable rate of each seed, or one rate for each cell of the seed, in the same order of cells. With
    several cells, the map whose rate is larger in more cells is the larger at this seed, because cells of one seed are not
    independent. Seeds without a larger map are ties; the test leaves them out, and both shares count them in their totals.
    margin: factor above 1; the claim does not hold if the median ratio of the rates is shown to be within it. A ratio needs
    rates above 0 that are not open ended; if any is not, the margin stays untested.
    """
    if margin is not None and not 1 < margin < math.inf:
        raise ValueError(f"margin is {margin}; allowed: a factor above 1")
    pairs = [pair for pair in _by_seed(first, second) if pair[0]]
    leads = [sum(a.rate > b.rate for a, b in pair) - sum(a.rate < b.rate for a, b in pair) for pair in _zipped(pairs)]
    larger, smaller = sum(lead > 0 for lead in leads), sum(lead < 0 for lead in leads)
    bounded = all(one.rate > 0 and not one.open_ended for pair in pairs for cells in pair for one in cells)
    same = margin is not None and bounded and _within([_log_ratio(pair) for pair in _zipped(pairs)], math.log(margin), alpha)
    return _claim(larger, smaller, len(pairs), larger - smaller, signs(larger, smaller).p, alpha, same)


def compare_maps(
    first: Mapping[int, Outcome | Sequence[Outcome]],
    second: Mapping[int, Outcome | Sequence[Outcome]],
    *,
    alpha: float = ALPHA,
    loss_margin: float | None = None,
) -> MapComparison:
    """The first map against the second, seed by seed: exact McNemar tests of `finite` and `trained`, and an exact sign-flip test
    of the losses where both trained.

    first, second: the outcome of each seed, or one outcome for each cell of the seed (other settings), in the same order of
    cells. With several cells, all of a seed count as one: the map with more finite (or trained) runs wins the seed, a share
    counts the seeds at which every cell has the outcome, and the loss of a seed is the mean difference over its cells.
    loss_margin: "lower loss" does not hold if the median difference is shown to be within it, in the unit of the loss.
    """
    pairs = list(_zipped(_by_seed(first, second)))
    finite = [[(a.finite, b.finite) for a, b in cells if a.finite is not None and b.finite is not None] for cells in pairs]
    trained = [[(a.trained, b.trained) for a, b in cells if a.trained is not None and b.trained is not None] for cells in pairs]
    losses = [[a.loss - b.loss for a, b in cells if a.loss is not None and b.loss is not None] for cells in pairs]
    differences = [math.fsum(cells) / len(cells) for cells in losses if cells]
    return MapComparison(_yes_or_no(finite, alpha), _yes_or_no(trained, alpha), _lower(differences, alpha, loss_margin))


def adjusted(claims: Mapping[str, Claim], alpha: float = ALPHA, family: int | None = None) -> dict[str, Claim]:
    """The claims judged again as one family, with p-values adjusted by Holm's method. A claim without a p-value is no test and
    stays as it is. family: number of tests, if these claims are only some of the family (`holm`)."""
    p_values = holm({name: claim.p for name, claim in claims.items() if claim.p is not None}, family)
    tests = len(p_values) if family is None else family
    return {
        name: _judged(replace(claim, p=p_values[name]), alpha, family=tests) if name in p_values else claim
        for name, claim in claims.items()
    }


def _by_seed(
    first: Mapping[int, T | Sequence[T]], second: Mapping[int, T | Sequence[T]]
) -> Iterator[tuple[Sequence[T], Sequence[T]]]:
    """The cells of the first and the second map at each seed that both have."""
    for seed, one in first.items():
        if seed in second:
            other = second[seed]
            yield one if isinstance(one, Sequence) else [one], other if isinstance(other, Sequence) else [other]


def _zipped(pairs: Iterable[tuple[Sequence[T], Sequence[T]]]) -> Iterator[list[tuple[T, T]]]:
    for a, b in pairs:
        if len(a) != len(b):
            raise ValueError(f"a seed has {len(a)} cells of the first map and {len(b)} of the second; allowed: the same cells")
        yield list(zip(a, b, strict=True))


def _yes_or_no(seeds: Sequence[Sequence[tuple[bool, bool]]], alpha: float) -> Claim:
    seeds = [cells for cells in seeds if cells]
    leads = [sum(a for a, _ in cells) - sum(b for _, b in cells) for cells in seeds]
    more, fewer = sum(lead > 0 for lead in leads), sum(lead < 0 for lead in leads)
    all_first, all_second = (sum(all(pair[i] for pair in cells) for cells in seeds) for i in (0, 1))
    return _claim(all_first, all_second, len(seeds), more - fewer, signs(more, fewer).p, alpha, False)


def _lower(differences: Sequence[float], alpha: float, margin: float | None) -> Claim:
    p = sign_flips(differences, [0.0] * len(differences))
    same = margin is not None and _within(differences, margin, alpha)
    lower, higher = sum(d < 0 for d in differences), sum(d > 0 for d in differences)
    # the test is about the mean, whose sign may differ from that of most differences
    return _claim(lower, higher, len(differences), -math.fsum(differences), p, alpha, same)


def _log_ratio(cells: Sequence[tuple[LargestRate, LargestRate]]) -> float:
    return math.fsum(math.log(a.rate / b.rate) for a, b in cells) / len(cells)


def _within(differences: Sequence[float], margin: float, alpha: float) -> bool:
    return equivalence(differences, margin, alpha).verdict == "no difference"


def _claim(first: int, second: int, pairs: int, lead: float, p: float, alpha: float, equivalent: bool) -> Claim:
    shares = share(first, pairs), share(second, pairs)
    direction = (lead > 0) - (lead < 0)
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
    if claim.p == 1 and not claim.direction:
        return replace(claim, verdict="cannot tell", reason=f"no difference was seen, {seeds}")
    return replace(claim, verdict="cannot tell", reason=tested)
