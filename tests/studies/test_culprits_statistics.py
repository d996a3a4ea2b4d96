"""The exact tests of "who killed the run?": which runs make a pair, and what may be said about them."""

from __future__ import annotations

import pytest

from studies.autopsies import Death
from studies.culprits import FROZEN, Cell
from studies.culprits_statistics import compared, comparison_sentences, counted


def death(kind: str) -> Death:
    return Death(step=3, kind=kind, place="norm", frozen=None, other=None, tenth=None, other_map="")


def cells(seeds: int) -> list[Cell]:
    """The native map dies at each seed and layer, `best` never, and `direct` dies alike."""
    found = []
    for layer in ("s4", "s5"):
        dead = dict.fromkeys(range(seeds), False), {seed: death("range") for seed in range(seeds)}
        found.append(Cell(layer, "native", 3.0, *dead))
        found.append(Cell(layer, FROZEN, 3.0, dict.fromkeys(range(seeds), True)))
        found.append(Cell(layer, "best", 3.0, dict.fromkeys(range(seeds), True)))
    found.append(Cell("s4", "direct", 3.0, dict.fromkeys(range(seeds), False), {seed: death("range") for seed in range(seeds)}))
    return found


def test_runs_of_equal_layer_seed_and_rate_make_a_pair() -> None:
    found = compared(cells(seeds=2), "best")
    assert found is not None
    assert (found.pairs, found.seeds, found.test.first_only, found.test.second_only) == (4, 2, 0, 4)
    assert found.test.p == pytest.approx(2 * 0.5**4)
    other_rate = [Cell("s4", "native", 1.0, {0: False}), Cell("s4", "best", 3.0, {0: True})]
    assert compared(other_rate, "best") is None
    other_seed = [Cell("s4", "native", 3.0, {0: False}), Cell("s4", "best", 3.0, {1: True})]
    assert compared(other_seed, "best") is None


def test_a_pair_with_an_arithmetic_death_is_left_out() -> None:
    found = cells(seeds=2)
    found[0].deaths[1] = death("arithmetic")
    left = compared(found, "best")
    assert left is not None
    assert (left.pairs, left.test.second_only) == (3, 3)


def test_two_seeds_cannot_tell_however_many_layers_they_have() -> None:
    lines = list(comparison_sentences(cells(seeds=2)))
    assert lines[0].startswith("Exploratory: ")
    best, direct = lines[2:]
    assert "4 pairs of equal layer, seed and learning rate: in 0 only the native run stays finite, in 4 only" in best
    assert "exact McNemar test, p = 0.12" in best
    assert best.endswith("With one vote per seed: cannot tell: 2 seeds.")
    assert "no pair differs, so the McNemar test has p = 1" in direct


def test_six_seeds_that_agree_can_tell() -> None:
    best = list(comparison_sentences(cells(seeds=6)))[2]
    assert best.endswith("With one vote per seed: `best` stays finite more often: p = 0.031, 6 seeds.")


def test_nothing_is_said_without_a_pair_or_a_value() -> None:
    assert list(comparison_sentences([Cell("gla", "native", 3.0, {0: True})])) == []
    assert counted([]) == ""
    assert counted([True, True]) == "2/2 [0.34, 1.00]"
