"""The study's results as text: no sentence claims more than the numbers show."""

from __future__ import annotations

import math

import pytest

from studies.systems import QUICK, Row
from studies.systems_text import sentences, table

SCORES = {"polynomial memory": (0.1, 5, 5), "recall": (0.5, 5, 5), "selective copying": (0.3, 5, 5), "digits": (0.9, 5, 5)}
RATES = {0.01: (5, 5), 0.1: (5, 5), 1.0: (2, 5)}


def row(map_: str = "native", **changes: object) -> Row:
    of = {
        "parameters": 100,
        "scores": dict(SCORES),
        "rates": dict(RATES),
        "ratios": (0.4, 10.0),
        "distance": 0.01,
        "memory": (10.0, 20.0),
    }
    return Row("mamba", map_, **(of | changes))  # type: ignore[arg-type]


def test_the_largest_rate_is_the_highest_learning_rate_before_any_seed_diverged() -> None:
    assert row().largest_rate == 0.1
    assert row(rates={0.01: (4, 5), 0.1: (5, 5)}).largest_rate is None
    assert row(rates={0.01: (5, 5), 0.1: (5, 5)}).largest_rate == 0.1


@pytest.mark.parametrize(
    ("changes", "said", "unsaid"),
    [
        ({}, ["up to lr 0.1, not at 1", "the same as with its native map", "on no task do the two differ"], ["better", "worse"]),
        ({"rates": dict.fromkeys(RATES, (5, 5))}, ["up to lr 1, the largest tried", "more than with its native map"], ["not at"]),
        ({"rates": {0.01: (3, 5)}}, ["not all seeds stay finite even at lr 0.01", "less than"], ["up to"]),
        ({"ratios": (0.04, 1.0)}, ["is 10 times smaller"], ["larger"]),
        ({"ratios": (4.0, 1.0)}, ["is 10 times larger"], ["smaller"]),
        ({"scores": SCORES | {"polynomial memory": (0.05, 5, 5)}}, ["better on polynomial memory (0.05, native 0.1)"], ["worse"]),
        ({"scores": SCORES | {"digits": (0.7, 5, 5)}}, ["worse on digits (0.7, native 0.9)"], ["better"]),
        ({"scores": SCORES | {"digits": (math.nan, 0, 5)}}, ["on no task do the two differ"], ["digits"]),
    ],
)
def test_a_sentence_states_only_claims_that_its_numbers_support(
    changes: dict[str, object], said: list[str], unsaid: list[str]
) -> None:
    _, sentence, *_ = sentences([row(), row("best", **changes)], QUICK)
    assert all(part in sentence for part in said), sentence
    assert not any(part in sentence for part in unsaid), sentence


ALL_FINITE = dict.fromkeys(RATES, (5, 5))


@pytest.mark.parametrize(
    "changes",
    [
        {"rates": RATES},
        {"ratios": (0.9, 10.0)},
        {"ratios": (0.2, 10.0)},
        {"scores": SCORES | {"digits": (0.7, 5, 5)}},
    ],
)
def test_a_row_that_parts_from_the_others_has_its_own_sentence(changes: dict[str, object]) -> None:
    native, best = row(rates=ALL_FINITE), row("best", rates=ALL_FINITE)
    (rest,) = sentences([native, best], QUICK)
    assert rest.endswith("no score by a tenth: mamba, mamba (best).")
    own, rest = sentences([native, row("best", **{"rates": ALL_FINITE} | changes)], QUICK)
    assert own.startswith("- **mamba, best**: all seeds")
    assert rest.endswith("no score by a tenth: mamba.")


def test_table_cells_report_lost_seeds_and_missing_values() -> None:
    *_, line = table([row(scores=SCORES | {"recall": (0.25, 3, 5)}, ratios=None, distance=None, memory=None)], QUICK)
    assert "| 0.25 (3/5) |" in line
    assert "| 0.1 (1: 2/5) |" in line
    assert line.count("| none ") == 4
