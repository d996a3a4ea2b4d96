"""Verdicts on planted outcomes: what twelve seeds show, three do not, and equal maps never do."""

from __future__ import annotations

import math
import random

import pytest

from stablessm_core.statistics import (
    LargestRate,
    Outcome,
    adjusted,
    bears_larger_rate,
    compare_maps,
    largest_rate_on_grid,
    mcnemar,
    outcome,
    outcomes,
)

RATES = (0.001, 0.01, 0.1, 1.0)
LOW, HIGH = LargestRate(0.01, 0.1), LargestRate(0.1, 1.0)


def seeds(rate: LargestRate, count: int) -> dict[int, LargestRate]:
    return dict.fromkeys(range(count), rate)


def test_three_of_three_seeds_cannot_tell_and_twelve_of_twelve_hold() -> None:
    few, many = bears_larger_rate(seeds(HIGH, 3), seeds(LOW, 3)), bears_larger_rate(seeds(HIGH, 12), seeds(LOW, 12))
    assert str(few) == "cannot tell: 3 seeds"
    assert (few.first.count, few.first.total) == (3, 3)
    assert many.verdict == "holds"
    assert many.p == pytest.approx(2 / 4096)
    assert bears_larger_rate(seeds(LOW, 12), seeds(HIGH, 12)).verdict == "does not hold"


def test_equal_rates_never_hold_and_are_refuted_only_within_a_stated_margin() -> None:
    for count in (1, 3, 12, 100):
        assert str(bears_larger_rate(seeds(LOW, count), seeds(LOW, count))).startswith("cannot tell")
    assert bears_larger_rate(seeds(LOW, 12), seeds(LOW, 12), margin=2).verdict == "does not hold"
    assert bears_larger_rate(seeds(LOW, 3), seeds(LOW, 3), margin=2).verdict == "cannot tell"
    top = LargestRate(1.0, math.inf)
    assert bears_larger_rate(seeds(top, 12), seeds(top, 12), margin=2).verdict == "cannot tell"  # both may bear any larger rate


@pytest.mark.slow
def test_among_thousands_of_drawn_pairs_of_equal_maps_a_claim_holds_as_rarely_as_alpha_allows() -> None:
    rng, held, pairs = random.Random(1), 0, 1000

    def drawn() -> dict[int, LargestRate]:
        return {s: largest_rate_on_grid({r: rng.random() > i / 4 for i, r in enumerate(RATES)}) for s in range(12)}

    for _ in range(pairs):
        held += bears_larger_rate(drawn(), drawn()).verdict == "holds"
    assert held / pairs <= 0.025  # the claim has one direction: half of alpha, and less because the test is exact


def test_a_family_of_comparisons_is_adjusted_and_needs_more_seeds() -> None:
    six = bears_larger_rate(seeds(HIGH, 6), seeds(LOW, 6))
    assert six.verdict == "holds"
    family = adjusted({"a": six, "b": six, "none": bears_larger_rate({}, {})})
    assert family["a"].p == pytest.approx(2 * 2 / 64)
    assert str(family["a"]) == "cannot tell: 6 seeds, adjusted for 2 comparisons"
    assert family["none"].p is None


def test_one_death_among_twelve_is_eleven_of_twelve_and_never_enters_a_loss() -> None:
    runs = {seed: outcome(math.nan if seed == 4 else 0.5) for seed in range(12)}
    found = outcomes(runs.values())
    assert (found.finite.count, found.finite.total) == (11, 12)
    assert found.losses == (0.5,) * 11
    against = compare_maps({seed: outcome(0.4) for seed in range(12)}, runs)
    assert (against.finite.first.count, against.finite.second.count) == (12, 11)
    assert against.finite.verdict == "cannot tell"
    assert against.loss.pairs == 11
    assert against.loss.verdict == "holds"


def test_a_death_that_float64_does_not_confirm_counts_neither_way() -> None:
    assert outcome(math.nan, dies_in_float64=False) == Outcome(None, None, None)
    assert outcome(math.nan, dies_in_float64=True) == outcome(None) == Outcome(False, False, None)
    sound, doubtful = dict.fromkeys(range(12), outcome(1.0)), dict.fromkeys(range(12), outcome(None, dies_in_float64=False))
    assert compare_maps(sound, doubtful).finite.p is None
    assert compare_maps(sound, dict.fromkeys(range(12), outcome(None))).finite.verdict == "holds"


def test_a_run_trained_only_if_it_is_better_than_chance_by_more_than_the_margin() -> None:
    assert outcome(0.7, chance=0.69, margin=0.05) == Outcome(True, False, None)
    assert outcome(0.5, chance=0.69, margin=0.05) == Outcome(True, True, 0.5)
    assert outcome(2.3, score=0.12, chance=0.1, margin=0.05, larger_is_better=True).trained is False
    assert outcome(1.0, score=0.9, chance=0.1, margin=0.05, larger_is_better=True) == Outcome(True, True, 1.0)
    assert outcome(0.5).trained is None


def test_the_lower_loss_is_judged_by_the_seeds_at_which_both_trained() -> None:
    first = {s: outcome(0.1 + s / 100, chance=1.0) for s in range(12)}
    second = {s: outcome(2.0 if s < 7 else 0.5, chance=1.0) for s in range(12)}
    found = compare_maps(first, second)
    assert (found.trained.first.count, found.trained.second.count, found.trained.verdict) == (12, 5, "holds")
    assert (found.loss.pairs, str(found.loss)) == (5, "cannot tell: 5 seeds")


def test_with_one_cell_per_seed_the_finite_claim_is_the_exact_mcnemar_test() -> None:
    rng = random.Random(2)
    a, b = ([rng.random() < share for _ in range(12)] for share in (0.9, 0.4))
    found = compare_maps(*({seed: Outcome(x, None, None) for seed, x in enumerate(one)} for one in (a, b))).finite
    assert found.p == mcnemar(a, b).p < 1
    assert (found.first.count, found.second.count) == (sum(a), sum(b))


def test_cells_of_one_seed_count_once_however_many_they_are() -> None:
    sound, dead = [outcome(0.1)] * 20, [outcome(None)] * 20
    assert str(compare_maps(dict.fromkeys(range(3), sound), dict.fromkeys(range(3), dead)).finite) == "cannot tell: 3 seeds"
    assert (
        str(bears_larger_rate(dict.fromkeys(range(3), [HIGH] * 9), dict.fromkeys(range(3), [LOW] * 9))) == "cannot tell: 3 seeds"
    )
    mixed = compare_maps(dict.fromkeys(range(12), sound), {seed: [*sound[1:], outcome(None)] for seed in range(12)}).finite
    assert (mixed.verdict, mixed.first.count, mixed.second.count) == ("holds", 12, 0)  # one of 20 cells died at every seed
    with pytest.raises(ValueError, match="a seed has 20 cells of the first map and 1 of the second"):
        compare_maps({0: sound}, {0: outcome(0.1)})


def test_a_family_larger_than_the_given_claims_makes_the_adjustment_stricter() -> None:
    six = bears_larger_rate(seeds(HIGH, 6), seeds(LOW, 6))
    assert adjusted({"a": six}, family=2)["a"].verdict == "cannot tell"
    twelve = bears_larger_rate(seeds(HIGH, 12), seeds(LOW, 12))
    assert adjusted({"a": twelve}, family=102)["a"].verdict == "holds"
    assert adjusted({"a": twelve}, family=103)["a"].verdict == "cannot tell"
