"""No sentence of the verdict claims more than its record shows: each test is a record about which a sentence could be wrong."""

from __future__ import annotations

from tests.core.verdict import examples_of_evidence
from tests.core.verdict.examples import texts
from tests.core.verdict.recorded import CALM, NAN, run_of

UNKNOWN = [*CALM, NAN]


def test_a_norm_with_an_unknown_input_is_not_said_to_overflow() -> None:
    assert "norm_squares" not in texts(examples_of_evidence.norm_squares(None))


# ---- the data and the loss ----


def test_a_batch_above_1e18_is_not_far_above_usual_batches_that_are_as_large() -> None:
    found = texts(run_of(UNKNOWN, largest=[9e17] * 6 + [1e18]))
    assert "far above usual" not in found["batch_far_above_usual"]
    assert "Its largest target is 1e18, and float32 cannot hold the sum of 341 such squares." in found["batch_far_above_usual"]
