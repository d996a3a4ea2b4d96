"""The report of "who killed the run?": every number in it is counted from the runs."""

from __future__ import annotations

import math
from typing import Any

import pytest

from studies.autopsies import Death
from studies.culprits import FROZEN, QUICK, Cell, Findings, by_key, culprit
from studies.culprits_figure import stability_svg
from studies.culprits_text import as_markdown, culprits_text, death_rows, finite_rows, map_rows, map_sentences, sentences
from studies.stability_map import Point, critical

SIZE = QUICK


def death(**changes: Any) -> Death:
    usual = {"step": 3, "kind": "range", "place": "norm", "frozen": True, "other": True, "tenth": True, "other_map": "best"}
    return Death(**usual | changes)  # type: ignore[arg-type]


def cells() -> list[Cell]:
    killed = {0: death(), 1: death(step=5, kind="dynamics", frozen=False, other=None)}
    return [
        Cell("s5", "native", 3.0, {0: False, 1: False, 2: True}, killed),
        Cell("s5", FROZEN, 3.0, {0: True, 1: False, 2: True}, {1: death(frozen=None)}),
        Cell("s5", "best", 3.0, {0: True, 1: True, 2: True}),
    ]


POINTS = [
    Point(32, 0.1, "direct", 0, largest=1.5, fatal=critical(32) * 1.01),
    Point(32, 0.1, "direct", 1, largest=1.2, fatal=None),
    Point(32, 0.1, "best", 0, largest=0.99, fatal=None),
]


def test_the_recurrence_is_guilty_if_the_same_run_lives_with_frozen_eigenvalues() -> None:
    native, frozen, _ = found = cells()
    known = by_key(found)
    assert [culprit(known, native, seed) for seed in (0, 1)] == ["recurrence", "other weights"]
    assert culprit(known, frozen, 1) == "other weights"
    frozen.deaths[1] = death(step=26)
    assert culprit(known, native, 1) == "recurrence", "it lived for 20 steps after step 5"
    frozen.deaths[1] = death(step=25)
    assert culprit(known, native, 1) == "other weights"
    native.deaths[0] = death(kind="arithmetic")
    assert culprit(known, native, 0) == "arithmetic"
    del frozen.finite[1]
    assert culprit(known, native, 1) == "unknown"
    assert culprit(by_key([native]), native, 1) == "no eigenvalue is trained"


def test_a_row_of_deaths_counts_seeds_and_trials() -> None:
    row = list(as_markdown(death_rows(cells())))[2]
    assert row == (
        "| s5 | native | 3 | 2/3 [0.21, 0.94] | 5 | range 1, dynamics 1 | norm | 1/2 [0.09, 0.91] | 2/2 [0.34, 1.00] "
        "| 1/2 [0.09, 0.91] | 1/1 [0.21, 1.00] (best) | 2/2 [0.34, 1.00] | recurrence 1, other weights 1 |"
    )


def test_a_cell_without_deaths_has_no_row_and_an_arm_is_not_compared_with_itself() -> None:
    rows = list(as_markdown(death_rows(cells())))
    assert len(rows) == 4
    assert rows[3].startswith(f"| s5 | {FROZEN} | 3 | 1/3 [0.06, 0.79] | 3 | range | norm |  | 1/1 [0.21, 1.00] |")


def test_finite_runs_are_counted_for_each_arm() -> None:
    assert (
        list(as_markdown(finite_rows(cells(), SIZE)))[2] == "| s5 | 1/3 [0.06, 0.79] | 2/3 [0.21, 0.94] |  | 3/3 [0.44, 1.00] |"
    )


def test_a_sentence_for_each_arm_adds_up_to_its_deaths() -> None:
    native, _, best = sentences(cells())
    assert native == (
        "- **native**: of the runs, 2/3 [0.21, 0.94] die. In float64: 1 dynamics, 1 range. Killed by: 1 recurrence, 1 "
        "other weights. Trials of the autopsies that live: with the recurrence frozen 1/2 [0.09, 0.91], with another map "
        "1/1 [0.21, 1.00], at a tenth of the rate 2/2 [0.34, 1.00]."
    )
    assert best == "- **best**: of the runs, 3/3 [0.44, 1.00] stay finite."


def test_the_map_shows_the_line_beside_the_steps_that_lived_and_died() -> None:
    rows = list(as_markdown(map_rows(POINTS)))
    assert rows[2:] == [
        "| 32 | 16 | direct | 1/2 [0.09, 0.91] | 1.5 | 16.16 |",
        "| 32 | 16 | best | 1/1 [0.21, 1.00] | 0.99 |  |",
    ]
    died, lived = map_sentences(POINTS)
    assert died.startswith(
        "- Of the runs, 1/3 [0.06, 0.79] died. Of these, 1/1 [0.21, 1.00] had the largest |λ| of the fatal step beyond"
    )
    assert lived.startswith("- Of the runs, 0/3 [0.00, 0.56] had an eigenvalue beyond the line in a finite step")
    assert math.isclose(critical(88), math.exp(88.7228 / 88), rel_tol=1e-5)


def test_the_same_findings_give_the_same_bytes() -> None:
    found = [Findings(SIZE, [1, 2, 3], cells(), list(POINTS), [], ["torch 2"], seconds) for seconds in (1.0, 2.0)]
    assert culprits_text(found[0]) == culprits_text(found[1])
    assert stability_svg(POINTS) == stability_svg(list(POINTS))
    assert stability_svg(POINTS).startswith(b"<?xml")


@pytest.mark.parametrize(
    "problem", ["1 of 2 runs of sweep 7 were deleted.", "Runs of several versions are mixed: torch 1, torch 2."]
)
def test_missing_and_mixed_runs_are_named(problem: str) -> None:
    assert f"- **Not complete**: {problem}" in culprits_text(Findings(SIZE, [7], cells(), [], [problem], []))


def test_an_autopsy_without_a_result_is_named_with_its_reason() -> None:
    lost = death(kind="unknown", frozen=None, other=None, tenth=None, reason="the bits differ")
    text = culprits_text(Findings(SIZE, [7], [Cell("s5", "native", 3.0, {0: False}, {0: lost})], [], [], []))
    assert "- **Not complete**: 1 autopsies without a result: the bits differ" in text
