"""Intervals of shares and of statistics over seeds, and the test of equivalence."""

from __future__ import annotations

import math
import statistics

import numpy as np
import pytest

from stablessm_core.statistics import Interval, bootstrap, bootstrap_mean, equivalence, wilson


@pytest.mark.parametrize(
    ("successes", "total", "low", "high"),
    # Newcombe, Statistics in Medicine 17 (1998), 857-872, table I, method 3
    [
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0, 0.1611),
        (1, 29, 0.0061, 0.1718),
        (7, 10, 0.3968, 0.8922),
    ],
)
def test_wilson_gives_newcombes_table(successes: int, total: int, low: float, high: float) -> None:
    found = wilson(successes, total)
    assert (round(found.low, 4), round(found.high, 4)) == (low, high)


def test_wilson_includes_its_ends_and_knows_nothing_without_a_run() -> None:
    assert wilson(12, 12).high == 1
    assert wilson(0, 3).low == 0
    assert wilson(0, 0) == Interval(0.0, 1.0)
    with pytest.raises(ValueError, match="successes is 4; allowed: 0 to total, which is 3"):
        wilson(4, 3)


def test_the_bootstrap_keeps_all_cells_of_a_seed_together() -> None:
    # the second cell is the first plus 5 in every seed, so the difference of the cells has no spread
    values = {seed: (float(seed**2), float(seed**2 + 5)) for seed in range(12)}
    assert bootstrap(values, lambda cells: statistics.fmean(b - a for a, b in cells)) == Interval(5.0, 5.0)
    spread = bootstrap(values, lambda cells: statistics.fmean(a for a, _ in cells))
    assert spread.low < statistics.fmean(seed**2 for seed in range(12)) < spread.high


def test_the_bootstrap_depends_on_its_seed_and_not_on_the_order_of_the_runs() -> None:
    values = {seed: math.sin(seed) for seed in range(12)}
    backwards = dict(reversed(values.items()))
    assert bootstrap(values, statistics.fmean) == bootstrap(backwards, statistics.fmean)
    assert bootstrap(values, statistics.fmean) != bootstrap(values, statistics.fmean, seed=1)


def test_the_bootstrap_refuses_runs_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match="the statistic is not finite"):
        bootstrap({0: 1.0, 1: math.nan}, statistics.fmean)
    with pytest.raises(ValueError, match="at least one seed"):
        bootstrap({}, len)


def test_the_interval_of_the_mean_has_the_bits_of_the_general_bootstrap() -> None:
    for count in (1, 3, 12, 20):
        values = [1000 * math.sin(3 * seed) for seed in range(count)]
        assert bootstrap_mean(values) == bootstrap(dict(enumerate(values)), lambda drawn: float(np.mean(drawn)))
    with pytest.raises(ValueError, match="the statistic is not finite"):
        bootstrap_mean([1.0, math.nan])
    with pytest.raises(ValueError, match="at least one number"):
        bootstrap_mean([])


def test_no_difference_needs_enough_seeds_within_the_margin() -> None:
    assert equivalence([0.0] * 3, 0.1).verdict == "cannot tell"
    assert equivalence([0.0] * 3, 0.1).p == pytest.approx(1 / 8)
    assert equivalence([0.0] * 5, 0.1).verdict == "no difference"
    assert equivalence([0.01, -0.02] * 6, 0.1).verdict == "no difference"
    assert equivalence([0.2] * 12, 0.1).verdict == "cannot tell"
    assert equivalence([0.1] * 12, 0.1).verdict == "cannot tell"  # at the margin is not within it
    with pytest.raises(ValueError, match="margin is 0; allowed: a positive number"):
        equivalence([0.0], 0)
