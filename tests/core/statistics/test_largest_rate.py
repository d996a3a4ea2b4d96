"""The search for the largest stable rate finds each seed's true rate, whoever drives it and in whatever order."""

from __future__ import annotations

import math
import random

import pytest

from stablessm_core.statistics import LargestRate, RateSearch, largest_rate_on_grid, largest_stable_rate


def drive(search: RateSearch, true: dict[int, float]) -> int:
    runs = 0
    while not search.done:
        for seed, rate in search.proposed().items():
            search.record(seed, rate, rate <= true[seed])
            runs += 1
    return runs


def test_bisection_brackets_every_true_rate_within_the_resolution() -> None:
    rng = random.Random(0)
    true = {seed: 10 ** rng.uniform(-4, 0) for seed in range(50)}
    search = largest_stable_rate(true, 1e-4, 1.0, resolution=2**0.5)
    runs = drive(search, true)
    assert runs <= 50 * math.ceil(math.log2(len(search.grid) + 1))
    for seed, found in search.results().items():
        assert found.rate <= true[seed] < found.above or (found.open_ended and true[seed] >= search.grid[-1])
        assert found.open_ended or found.above / found.rate == pytest.approx(2**0.5, rel=1e-4)


def test_leaps_from_a_good_start_need_fewer_rounds_and_find_the_same_rates() -> None:
    true = {0: 45.0, 1: 500.0, 2: 0.001, 3: 9000.0, 4: 1e-9, 5: 1e9}
    plain = largest_stable_rate(true, 1e-4, 1e4)
    drive(plain, true)
    leaping = largest_stable_rate(true, 1e-4, 1e4, start=41.0)
    rounds = 0
    while not leaping.done:
        for seed, rate in leaping.proposed().items():
            leaping.record(seed, rate, rate <= true[seed])
        rounds += 1
        if rounds == 2:
            assert leaping.stable[0] > 0
            assert leaping.unstable[0] - leaping.stable[0] == 8, "a leap of 16 in steps of the root of 2"
            assert leaping.rounds_left() >= 3
        if rounds == 5:
            assert leaping.results().keys() >= {0, 1}, "start, one leap, and three halvings"
    assert leaping.results() == plain.results()
    assert leaping.rounds_left() == 0


def test_rates_outside_the_tested_range_are_told_apart_from_rates_inside() -> None:
    search = largest_stable_rate([0, 1], 0.01, 1.0)
    drive(search, {0: 0.001, 1: 50.0})
    assert search.results() == {0: LargestRate(0.0, 0.01), 1: LargestRate(search.grid[-1], math.inf)}


def test_a_search_that_repeats_its_records_continues_where_it_was() -> None:
    first = largest_stable_rate([3], 0.01, 1.0)
    said = []
    for _ in range(2):
        (rate,) = first.proposed().values()
        said.append((3, rate, rate < 0.05))
        first.record(*said[-1])
    again = largest_stable_rate([3], 0.01, 1.0)
    for record in [*said, *said]:
        again.record(*record)
    assert again == first
    assert not again.done
    assert again.results() == {}


def test_bad_limits_and_foreign_records_are_refused() -> None:
    with pytest.raises(ValueError, match=r"low is 1 and high is 0\.1"):
        largest_stable_rate([0], 1, 0.1)
    with pytest.raises(ValueError, match="resolution is 1; allowed: a factor above 1"):
        largest_stable_rate([0], 0.1, 1, resolution=1)
    with pytest.raises(ValueError, match=r"start is 2; allowed: 0\.1 to 1"):
        largest_stable_rate([0], 0.1, 1, start=2)
    with pytest.raises(ValueError, match=r"leap is 1\.1; allowed: a factor of at least the resolution"):
        largest_stable_rate([0], 0.1, 1, start=0.5, leap=1.1)
    search = largest_stable_rate([0], 0.1, 1)
    with pytest.raises(ValueError, match="seed is 7; allowed: 0"):
        search.record(7, 0.1, True)
    with pytest.raises(ValueError, match=r"rate is 0\.123; allowed: a rate of the grid"):
        search.record(0, 0.123, True)


def test_on_a_grid_the_largest_rate_ends_before_the_first_death() -> None:
    assert largest_rate_on_grid({0.1: True, 0.01: True, 1.0: False}) == LargestRate(0.1, 1.0)
    assert largest_rate_on_grid({0.1: False, 0.01: True, 1.0: True}) == LargestRate(0.01, 0.1)
    assert largest_rate_on_grid({0.1: False}) == LargestRate(0.0, 0.1)
    assert largest_rate_on_grid({0.1: True}).open_ended
