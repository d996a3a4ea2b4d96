"""Judges registered claims: holds, does not hold, cannot tell, or cannot be tested here.

A claim holds if every comparison that it names is significant in its direction, after Holm's correction over the whole registered
family. It does not hold if, for some comparison, the median advantage is shown to be below the registered margin,
or the other variant is better. In every other case
we cannot tell. Seeds are the unit of every test: a claim compares numbers of equal seed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from studies.paper.comparisons import BY_SIGN, Compared, compare, holm_within
from studies.paper.measures import BINARY, ON_DEATHS, UNITS, Numbers, advantage, variants_of
from studies.paper.registry import Claim, Registry

HOLDS, FAILS, UNKNOWN, UNTESTABLE = "holds", "does not hold", "cannot tell", "cannot be tested here"
VERDICTS = (HOLDS, FAILS, UNKNOWN, UNTESTABLE)
Read = Callable[[Mapping[str, Any], str, bool], Numbers]


@dataclass
class Verdict:
    """The verdict on a claim. why: its reason in words. p: before and p_holm after the correction, or None without a test."""

    claim: str
    verdict: str
    why: str
    test: str = ""
    p: float | None = None
    p_holm: float | None = None
    comparisons: list[dict[str, Any]] = field(default_factory=list)


def without_test(claim: Claim) -> Verdict | None:
    """The verdict on a claim that no test judges; None if there is a test."""
    if claim.test is not None:
        return None
    if claim.untestable is not None:
        return Verdict(claim.id, UNTESTABLE, claim.untestable)
    return Verdict(claim.id, UNKNOWN, claim.label or "No test was registered for this claim.")


def judge(
    claims: Sequence[Claim], registry: Registry, read: Read, seeds: int, problems: Sequence[str], uncertain: int = 0
) -> list[Verdict]:
    """The verdicts on claims with paired tests and on claims without a test, in their order.

    read: the numbers of a variant by seed (`measures.numbers_of`). seeds: how many seeds the study has. problems: what is missing
    or mixed; any problem makes every verdict "cannot tell". uncertain: the number of deaths that float64 does not confirm.
    """
    paired = [claim for claim in claims if claim.test is not None and claim.test["kind"] == "paired"]
    compared = {claim.id: _comparisons(claim, read) for claim in paired}
    ps, corrected = [], []
    for spared in (False, True):
        of_claims = {claim.id: compared[claim.id].p(spared) for claim in paired}
        ps.append(of_claims)
        family = {claim.id: of_claims[claim.id] for claim in paired if claim.family}
        corrected.append(of_claims | holm_within(family, registry.family_size))
    verdicts = []
    for claim in claims:
        given = without_test(claim)
        if given is not None:
            verdicts.append(given)
        elif claim.id in compared:
            of_claim = compared[claim.id]
            p_holm = corrected[0][claim.id] if claim.family else None
            found = Verdict(claim.id, UNKNOWN, "", test_in_words(claim), ps[0][claim.id], p_holm)
            found.comparisons = [pair.json for pair in of_claim.counted]
            final = corrected[0][claim.id], corrected[1][claim.id]
            _decide(found, claim, of_claim, final, registry, seeds, problems, uncertain)
            verdicts.append(found)
    return verdicts


@dataclass
class _Comparisons:
    """The comparisons of a claim; in `counted` uncertain deaths count as deaths, in `spared` as survivals."""

    counted: list[Compared]
    spared: list[Compared]

    def p(self, spared: bool) -> float:
        """The p-value of the claim: the largest of its comparisons."""
        return max((pair.p for pair in (self.spared if spared and self.spared else self.counted)), default=1.0)


def _comparisons(claim: Claim, read: Read) -> _Comparisons:
    test: Mapping[str, Any] = claim.test or {}
    both = (False, True) if test["measure"] in ON_DEATHS else (False,)
    found: dict[bool, list[Compared]] = {False: [], True: []}
    for spared in both:
        for better, than in variants_of(test):
            numbers = advantage(test, read(test, better, spared), read(test, than, spared))
            found[spared].append(compare(better, than, numbers, measure=test["measure"], margin=test["margin"]))
    return _Comparisons(found[False], found[True])


def _decide(
    found: Verdict, claim: Claim, compared: _Comparisons, final: tuple[float, float], registry: Registry, seeds: int,
    problems: Sequence[str], uncertain: int,
) -> None:  # fmt: skip
    test: Mapping[str, Any] = claim.test or {}
    if problems:
        found.why = " ".join(problems)
        return
    if seeds < test["min_seeds"]:
        found.why = f"{seeds} seeds; {test['min_seeds']} were registered."
        return
    scenarios = zip((compared.counted, compared.spared), final, strict=True)
    outcomes = [_outcome(pairs, p, registry.alpha) for pairs, p in scenarios if pairs]
    if len(set(outcomes)) > 1:
        found.why = (
            f"The answer depends on {uncertain} deaths that float64 does not confirm: {outcomes[0]} if they count as deaths, "
            f"{outcomes[1]} if they count as survivals."
        )
        return
    found.verdict = outcomes[0]
    found.why = _reason(found.verdict, compared.counted, test, final[0], registry)


def _outcome(pairs: Sequence[Compared], p: float, alpha: float) -> str:
    if any(pair.excludes_margin(alpha) or (pair.p < alpha and pair.mean < 0) for pair in pairs):
        return FAILS
    if p < alpha and all(pair.mean > 0 for pair in pairs):
        return HOLDS
    return UNKNOWN


def _reason(verdict: str, pairs: Sequence[Compared], test: Mapping[str, Any], p: float, registry: Registry) -> str:
    unit, margin = UNITS[test["measure"]], amount(test["margin"], test["measure"])
    if verdict == HOLDS:
        least = min(pairs, key=lambda pair: pair.mean)
        return (
            f"The smallest advantage is that of {least.better} over {least.than}: {least.mean:.3g} {unit} "
            f"[{least.low:.3g}, {least.high:.3g}] over {least.n} pairs, p = {p:.3g} after Holm's correction over "
            f"{registry.family_size} tests."
        )
    if verdict == FAILS:
        worst = min(pairs, key=lambda pair: pair.mean if pair.n else float("inf"))
        how = (
            f"in {worst.below} of {worst.n} pairs it is below the registered margin of {margin}"
            if worst.excludes_margin(registry.alpha)
            else f"{worst.than} is better, p = {worst.p:.3g}"
        )
        said = f"The advantage of {worst.better} over {worst.than} is {worst.mean:.3g} {unit} "
        return said + f"[{worst.low:.3g}, {worst.high:.3g}]; {how}."
    fewest = min(pairs, key=lambda pair: pair.n)
    if not fewest.n:
        return f"No seed has a number for both {fewest.better} and {fewest.than}."
    return (
        f"{fewest.better} against {fewest.than}: {fewest.mean:.3g} {unit} [{fewest.low:.3g}, {fewest.high:.3g}] over {fewest.n} "
        f"pairs; neither an advantage nor the absence of one of {margin} is shown (p = {p:.3g})."
    )


def amount(value: float, measure: str) -> str:
    """A number of a measure with its unit, such as `0.3 decades` and `1 decade`."""
    unit = UNITS[measure]
    return f"{value:g} {unit.removesuffix('s') if value == 1 and unit == 'decades' else unit}"


def test_in_words(claim: Claim) -> str:
    """The registered test of a claim in one sentence."""
    test: Mapping[str, Any] = claim.test or {}
    if test["kind"] == "exact":
        return f"{test['asks']} An exact computation; relative tolerance {test['margin']:g}."
    by_sign = test["measure"] in BY_SIGN
    name = "exact McNemar test" if test["measure"] in BINARY else "exact sign test" if by_sign else "exact sign-flip test"
    tried = " A rate above the largest tried counts as the largest tried." if test["measure"] == "largest_rate" else ""
    return (
        f"{test['asks']} Two-sided {name}, paired by seed, at least {test['min_seeds']} seeds, margin "
        f"{amount(test['margin'], test['measure'])}.{tried}"
    )
