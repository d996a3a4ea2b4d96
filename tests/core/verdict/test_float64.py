"""The sentence about a fatal step in float64 follows from the findings of the autopsy."""

from __future__ import annotations

from typing import Any

import pytest

from stablessm_core.verdict.float64 import compare_with_float64

FIRST = {"operation": "scan_states", "largest_input": 28.0}


def findings(largest: float | str, finite: bool = True, first: dict[str, Any] | None = FIRST, **more: Any) -> dict[str, Any]:
    wide = {"finite": finite, "largest": largest, "loss": 0.7}
    modules = [{"largest": 28.0, "largest_float64": largest}]
    found = {"step": 9, "fatal": True, "bits_equal": True, "refused": None, "loss": "NaN", "float64": wide, "modules": modules}
    return found | {"first_nonfinite": first} | more


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (findings(6.9e38), "float32 ends at 3.4e38, so it cannot hold this number."),
        (findings(4.5e24, first={"operation": "native_layer_norm", "largest_input": 4.5e24}),
         "A norm squares its input, and the square of 4.5e24 is above float32's limit of 3.4e38."),
        (findings(220.0),
         "float32 could hold every number of the float64 step and its square, so the arithmetic in float32 lost it."),
        (findings(1e20, first={"operation": "pow", "largest_input": 1e20}),
         "Every result of the float64 step fits into float32, so a larger number arose inside pow, or pow computes in a narrower "
         "format."),
    ],
)  # fmt: skip
def test_the_sentence_says_why_float32_lost_the_number(found: dict[str, Any], said: str) -> None:
    assert compare_with_float64(found) == said


def test_there_is_nothing_to_compare_with_a_step_that_is_not_fatal_or_not_finite_in_float64() -> None:
    assert compare_with_float64(findings("Infinity", finite=False)) == ""
    assert compare_with_float64(findings(7.0, first=None)) == ""
    assert compare_with_float64(findings(7.0, float64=None)) == ""
