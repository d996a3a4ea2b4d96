"""The table of every system: which rows there are, and that no sentence says more than its numbers."""

from __future__ import annotations

import math

import pytest

from server.cli.systems import LONG, QUICK, Row, Size, models, sentences, table
from stablessm_core.config import Model, parse_config
from stablessm_core.layers.registry import LAYERS

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


@pytest.mark.parametrize("size", [QUICK, LONG], ids=lambda size: size.name)
def test_every_layer_has_a_row_and_with_best_starts_at_the_same_eigenvalues(size: Size) -> None:
    rows = models(size)
    assert {one["layer"] for one in rows} == set(LAYERS)
    best = {one["layer"] for one in rows if one["reparameterization"]["name"] == "best"}
    can = {
        name
        for name in LAYERS
        if (section := LAYERS[name].model_validate({"name": name})).time_of_map() and section.native != "best"
    }
    assert best == can - {name for name in can if name == "hyena"}
    for one in rows:
        for task in size.tasks.values():
            parse_config({"task": dict(task), "model": one})
        Model.model_validate(one)


def test_the_largest_rate_is_the_last_before_a_seed_was_lost() -> None:
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
def test_a_sentence_says_what_its_numbers_say_and_no_more(changes: dict[str, object], said: list[str], unsaid: list[str]) -> None:
    *_, sentence = sentences([row(), row("best", **changes)], QUICK)
    assert all(part in sentence for part in said), sentence
    assert not any(part in sentence for part in unsaid), sentence


def test_what_was_lost_stands_in_its_cell() -> None:
    *_, line = table([row(scores=SCORES | {"recall": (0.25, 3, 5)}, ratios=None, distance=None, memory=None)], QUICK)
    assert "| 0.25 (3/5) |" in line
    assert "| 0.1 (1: 2/5) |" in line
    assert line.count("| none ") == 4
