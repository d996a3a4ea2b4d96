"""No sentence of the verdict claims more than its record shows: each test is a record about which a sentence could be wrong."""

from __future__ import annotations

from tests.core.verdict.examples import EXAMPLES, texts


def test_a_norm_with_an_unknown_input_is_not_said_to_overflow() -> None:
    assert "norm_squares" not in texts(EXAMPLES["norm_squares"].make(None))
