"""The numbers that the registered tests compare: one number per seed for each variant."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from studies.paper.designs import Part
from studies.paper.outcomes import Collected, Outcome, State

Numbers = dict[int, float]  # by seed; a seed without a number is left out
UNCERTAIN: tuple[State, ...] = ("arithmetic", "unchecked")
DEAD: tuple[State, ...] = ("died", *UNCERTAIN)
ENDED: tuple[State, ...] = ("finite", *DEAD)
BINARY = ("finite", "trained")  # measures that are 0 or 1
ON_DEATHS = ("finite", "trained", "largest_rate")  # measures that change if an uncertain death counts as a survival


def numbers_of(found: Collected, test: Mapping[str, Any], variant: str, *, spared: bool) -> Numbers:
    """The test's measure of a variant, by seed. spared: whether deaths that float64 does not confirm count as survivals.

    largest_rate: log10 of the largest learning rate such that the run is finite at this rate and at every smaller rate of the
    part; a seed that is not finite at the smallest rate gets one decade less than the smallest rate.
    finite, trained: 1 or 0. loss, accuracy: of trained runs. ratio, first_ratio: log10 of the largest |grad| / |w|.
    """
    part = next(one for one in found.design.parts if one.name == test["part"])
    measure = test["measure"]
    if measure == "largest_rate":
        return _largest_rates(found, part, variant, spared)
    if measure == "first_ratio":
        part = next(one for one in found.design.parts if one.name == "start")
    rate = float(test.get("rate", part.rates[-1]))
    if rate not in part.rates:
        return {}
    return _READ[measure](found.of(part.name, variant, rate), spared)


def lives(one: Outcome, spared: bool) -> bool:
    """Whether a run counts as finite."""
    return one.state == "finite" or (spared and one.state in UNCERTAIN)


def _largest_rates(found: Collected, part: Part, variant: str, spared: bool) -> Numbers:
    rates = sorted(part.rates)
    by_rate = [found.of(part.name, variant, rate) for rate in rates]
    numbers = {}
    for seed in sorted(set.intersection(*(set(cell) for cell in by_rate))):
        runs = [cell[seed] for cell in by_rate]
        if any(one.state not in ENDED for one in runs):
            continue
        survived = next((i for i, one in enumerate(runs) if not lives(one, spared)), len(rates))
        numbers[seed] = math.log10(rates[survived - 1]) if survived else math.log10(rates[0]) - 1
    return numbers


def _finite(cell: Mapping[int, Outcome], spared: bool) -> Numbers:
    return {seed: float(lives(one, spared)) for seed, one in cell.items() if one.state in ENDED}


def _trained(cell: Mapping[int, Outcome], spared: bool) -> Numbers:
    return {seed: float(one.trained or (spared and one.state in UNCERTAIN)) for seed, one in cell.items() if one.state in ENDED}


def _of_trained(name: str) -> Callable[[Mapping[int, Outcome], bool], Numbers]:
    def read(cell: Mapping[int, Outcome], spared: bool) -> Numbers:  # noqa: ARG001 - a death has no loss
        return {seed: one.values[name] for seed, one in cell.items() if one.trained and math.isfinite(one.values[name])}

    return read


def _accuracy(cell: Mapping[int, Outcome], spared: bool) -> Numbers:  # noqa: ARG001 - a death has no accuracy
    known = {seed: one.values["eval_accuracy"] for seed, one in cell.items() if one.state == "finite"}
    return {seed: value for seed, value in known.items() if math.isfinite(value)}


def _ratio(cell: Mapping[int, Outcome], spared: bool) -> Numbers:  # noqa: ARG001 - recorded before a death, too
    known = {seed: one.values["largest_ratio"] for seed, one in cell.items() if one.state in ENDED}
    return {seed: math.log10(value) for seed, value in known.items() if value > 0 and math.isfinite(value)}


_READ: dict[str, Callable[[Mapping[int, Outcome], bool], Numbers]] = {
    "finite": _finite,
    "trained": _trained,
    "loss": _of_trained("eval_loss"),
    "accuracy": _accuracy,
    "ratio": _ratio,
    "first_ratio": _ratio,
}
SMALLER_IS_BETTER = ("loss", "ratio", "first_ratio", "error")
UNITS = {
    "largest_rate": "decades", "finite": "of all pairs", "trained": "of all pairs", "loss": "loss",
    "accuracy": "accuracy", "ratio": "decades", "first_ratio": "decades", "error": "decades", "crossing_shift": "decades",
    "radius": "decades",
}  # fmt: skip


def advantage(test: Mapping[str, Any], better: Numbers, than: Numbers) -> list[float]:
    """The advantage of the first variant over the second for each seed that both have, positive if the claim is right."""
    sign = -1.0 if test["measure"] in SMALLER_IS_BETTER else 1.0
    return [sign * (better[seed] - than[seed]) for seed in sorted(set(better) & set(than))]


def variants_of(test: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The pairs that the test compares."""
    return [(better, than) for better in test["better"] for than in test["than"]]
