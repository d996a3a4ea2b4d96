"""The spellings of the numbers that JSON lacks: "NaN", "Infinity" and "-Infinity", as used in the database, the API and the
browser.

`float()` reads the three spellings back, and `static/lib/nonfinite.js` holds the same list for the browser.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

Spelling = Literal["NaN", "Infinity", "-Infinity"]
NONFINITE: tuple[Spelling, ...] = get_args(Spelling)
NAN, INFINITY, MINUS_INFINITY = NONFINITE


def spelling(value: float) -> Spelling | None:
    """The spelling of a non-finite number; None for a finite number."""
    if math.isfinite(value):
        return None
    return NAN if math.isnan(value) else INFINITY if value > 0 else MINUS_INFINITY


def as_text(value: float) -> str:
    """Any number as text that `float()` converts back to the same number."""
    return spelling(value) or repr(float(value))


def json_safe(value: Any) -> Any:
    """The value with its non-finite floats, at any depth, replaced by their spellings, so that it can be written as JSON."""
    if isinstance(value, float):
        return spelling(value) or value
    if isinstance(value, dict):
        return {str(key): json_safe(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(item) for item in value]
    return value
