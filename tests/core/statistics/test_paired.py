"""The paired tests and the adjustment of p-values give values that are published, or that are counted here by hand."""

from __future__ import annotations

import itertools
import math

import pytest

from stablessm_core.statistics import EXACT_PAIRS, Paired, holm, mcnemar, sign_flips, signs

# Darwin's maize: crossed minus self-fertilised, in eighths of an inch. Fisher counts 863 of 32,768 in The Design of Experiments.
MAIZE = [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48]


def test_mcnemar_counts_discordant_pairs_only() -> None:
    a = [True] * 9 + [False] + [True, False] * 20
    b = [False] * 9 + [True] + [True, False] * 20
    assert mcnemar(a, b) == Paired(9, 1, pytest.approx(2 * (1 + 10) / 2**10))
    assert mcnemar(b, a).p == mcnemar(a, b).p


def test_twelve_to_none_and_three_to_none_have_the_binomial_p_values() -> None:
    assert signs(12, 0).p == pytest.approx(2 / 4096)
    assert signs(10, 0).p == pytest.approx(0.001953125)
    assert signs(3, 0).p == pytest.approx(0.25)
    assert signs(5, 5).p == signs(0, 0).p == mcnemar([True], [True]).p == 1


def test_sign_flips_give_fishers_count_for_darwins_maize() -> None:
    assert len(MAIZE) <= EXACT_PAIRS
    assert sign_flips(MAIZE, [0.0] * 15) == pytest.approx(2 * 863 / 2**15, rel=1e-12)


def test_sign_flips_equal_a_count_over_all_sign_vectors_with_ties_and_zeros() -> None:
    differences = [0.0, 0.5, -0.25, 1.0, 1.0, 0.5, -0.5]
    seen = abs(sum(differences))
    extreme = [
        abs(sum(s * d for s, d in zip(flips, differences, strict=True))) >= seen for flips in itertools.product((1, -1), repeat=7)
    ]
    assert sign_flips([2 + d for d in differences], [2.0] * 7) == pytest.approx(sum(extreme) / 2**7)


def test_sign_flips_of_equal_values_or_of_a_single_pair_show_nothing() -> None:
    assert sign_flips([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]) == 1
    assert sign_flips([1.0], [0.0]) == sign_flips([], []) == 1


def test_beyond_the_exact_number_of_pairs_the_same_flips_are_drawn_each_time() -> None:
    a = [0.1 * i for i in range(-8, 14)]
    first = sign_flips(a, [0.0] * len(a))
    assert first == sign_flips(a, [0.0] * len(a))
    assert 0.01 < first < 0.2


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_refused_by_its_name(value: float) -> None:
    with pytest.raises(ValueError, match=rf"b\[1\] is {value}; allowed: finite numbers.*outcome `finite`"):
        sign_flips([1.0, 2.0], [1.0, value])


def test_pairs_of_different_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match="a has 1 values and b has 2"):
        mcnemar([True], [True, False])


def test_holm_gives_the_textbook_example_in_the_order_given() -> None:
    found = holm({"H1": 0.01, "H2": 0.04, "H3": 0.03, "H4": 0.005})
    assert list(found) == ["H1", "H2", "H3", "H4"]
    assert found == pytest.approx({"H1": 0.03, "H2": 0.06, "H3": 0.06, "H4": 0.02})
    assert holm({"a": 0.9, "b": 0.6}) == {"a": 1.0, "b": 1.0}
    with pytest.raises(ValueError, match=r"the p-value of 'a' is 1\.5; allowed: 0 to 1"):
        holm({"a": 1.5})
