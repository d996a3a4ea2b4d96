"""Two sentences that contradict each other are never said about one run. The runs are drawn at random."""

from __future__ import annotations

import re
from random import Random
from typing import Any

import pytest

from stablessm_core.telemetry.how import How
from stablessm_core.verdict import SENTENCES, judge
from tests.core.verdict.examples import Record
from tests.core.verdict.findings import counterfactual, findings, first, gradient, modules
from tests.core.verdict.recorded import NAN, run_of

CONTRADICTIONS = [
    ("never_outside", "furthest_eigenvalue"), ("never_outside", "outside_without_overflow"),
    ("never_outside", "eigenvalue_overflowed"), ("nearest_eigenvalue", "furthest_eigenvalue"),
    ("eigenvalues_inside", "eigenvalues_outside"), ("budget_is_spent", "sequences_are_short"),
    ("step_size_ran_away", "furthest_eigenvalue"), ("no_warning", "exploding_training"), ("calm_before", "training_exploded"),
    ("loss_jumped", "training_exploded"), ("ended_above_start", "loss_did_not_fall"), ("ended_above_start", "learned_nothing"),
    ("gradient_agrees", "gradient_disagrees"), ("gradient_agrees", "gradient_not_proved"),
    ("gradient_spiked", "no_spike_of_gradient"), ("one_step_crossed", "steps_crossed"), ("batch_flag_missing", "flag_of_batch"),
    ("batch_is_known", "batch_far_above_usual"), ("batch_is_known", "batch_is_unknown"),
    ("numbers_exploded", "finite_in_float64"), ("frozen_trial", "trials_not_comparable"),
]  # fmt: skip


def test_the_sentences_that_contradict_each_other_exist() -> None:
    assert {name for pair in CONTRADICTIONS for name in pair} <= set(SENTENCES)


@pytest.mark.parametrize("seed", range(4))
def test_no_two_sentences_about_a_run_contradict_each_other_and_none_quotes_a_missing_number(seed: int) -> None:
    draw = Random(seed)
    for _ in range(100):
        record = drawn(draw)
        verdict = judge(*record)
        said = verdict["sentences"] + verdict["evidence"]
        names = {one["sentence"] for one in said}
        assert verdict["summary"]
        assert [pair for pair in CONTRADICTIONS if {*pair} <= names] == []
        assert [one["text"] for one in said if re.search(r"not a number|\bnan\b|\bNone\b(?! of)", one["text"])] == []


def drawn(draw: Random) -> Record:
    """A run whose losses and eigenvalues walk at random, with a sudden value now and then."""

    def walk(start: float, usual: tuple[float, ...], sudden: tuple[float, ...], rows: int) -> list[float]:
        values = [start]
        for _ in range(rows - 1):
            values.append(values[-1] * draw.choice(sudden if draw.random() < 0.15 else usual))
        return values

    def sizes(*sudden: float) -> list[float]:
        return [draw.choice(sudden) if draw.random() < 0.1 else draw.uniform(0.8, 1.2) for _ in range(rows)]

    rows, every, dead = draw.choice((1, 2, 3, 6, 12, 60)), draw.choice((1, 1, 1, 10)), draw.random() < 0.8
    loss = walk(1.0, (0.9, 0.95, 1.0, 1.05, 1.1), (1e-3, 0.5, 2.0, 10.0, 1e3), rows)
    eigenvalue = walk(0.9, (1.0, 1.0, 1.02, 0.95), (1.1, 1.3), rows)
    if dead:
        loss[-1] = NAN
    if draw.random() < 0.5:
        eigenvalue = [min(value, 0.99) for value in eigenvalue]
    columns: dict[str, Any] = {"weight_norm": [draw.choice((1.0, 10.0, 100.0))] * rows} if draw.random() < 0.7 else {}
    columns["batch"] = [0.0] * (rows - 1) + [draw.choice((0.0, 0.0, 2.0, NAN))]
    columns["lr"] = [0.1] * rows if draw.random() < 0.7 else [draw.choice((0.1, 0.01)) for _ in range(rows)]
    how: dict[str, Any] = {"reported": How(optimizer=draw.choice(("sgd", "adam", None)), length=100, every=every)}
    if draw.random() < 0.7:
        step = 1 + every * (rows - 1)
        how = {"autopsy": autopsied(draw, step) if dead and draw.random() < 0.5 else None}
    return run_of(
        loss, every=every, eigenvalue=eigenvalue, name=draw.choice(("sgd", "adamw")), largest=sizes(3.0, 20.0, 1e19),
        grad_norm=sizes(0.0, 30.0, 2e3), ratio=sizes(0.0, 30.0), columns=columns, environment={"parameters": 100}, **how,
    )  # fmt: skip


def autopsied(draw: Random, step: int) -> dict[str, Any]:
    changes = ("recurrence_frozen", "tenth_of_rate", "batch_left_out", "batches_scaled")
    trials = [
        counterfactual(change, draw.random() < 0.5, step + draw.choice((0, 3, 50))) | {"from_step": max(0, step - 2)}
        for change in changes
        if draw.random() < 0.6
    ]
    place, operation = draw.choice((("forward", "scan_states"), ("loss", "aten.log"), ("backward", "native_layer_norm")))
    made = first(
        place,
        operation,
        draw.choice(("blocks.0.ssm", "")),
        layer=draw.choice((0, None)),
        largest_input=draw.choice((3.0, 1e20, None)),
    )
    known = gradient(max(1, step - 1), draw.choice((0.5, 0.54, 3.0)), 0.5, converged=draw.random() < 0.7)
    return findings(
        step, first_nonfinite=made, modules=modules(draw.choice((220.0, 1e19, 1e39))), gradient=draw.choice((None, known)),
        counterfactuals=[counterfactual("unchanged", False, draw.choice((step, step, step + 1))), *trials],
    )  # fmt: skip
