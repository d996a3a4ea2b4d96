"""What the repetition of a fatal step in float64 says about the number that is not finite, as one sentence.

The run page and the command line print it below the repetition's loss and its largest magnitude.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stablessm_core.verdict.formats import number
from stablessm_core.verdict.measured import FLOAT32_LARGEST, autopsy_of, number_of

SQUARE_ROOT = FLOAT32_LARGEST**0.5


def compare_with_float64(findings: Mapping[str, Any]) -> str:
    """Why float32 lost a number that float64 could hold. "" if the step is not fatal, or not finite in float64 either.

    findings: an autopsy with a result, as the API returns it.
    """
    wide, first = findings.get("float64"), findings.get("first_nonfinite")
    if not wide or not wide["finite"] or not first:
        return ""
    if number_of(wide["largest"]) > FLOAT32_LARGEST:
        return "float32 ends at 3.4e38, so it cannot hold this number."
    known = autopsy_of(findings, findings["step"])
    if known is not None and known.fits_float32:
        return "float32 could hold every number of the float64 step and its square, so the arithmetic in float32 lost it."
    given = number_of(first["largest_input"])
    if "norm" in first["operation"] and given > SQUARE_ROOT:
        return f"A norm squares its input, and the square of {number(given)} is above float32's limit of 3.4e38."
    return (
        "Every result of the float64 step fits into float32, so a larger number arose inside "
        f"{first['operation']}, or {first['operation']} computes in a narrower format."
    )
