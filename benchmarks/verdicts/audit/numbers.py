"""Reads the numbers of a sentence and compares them with values, as exactly as the sentence writes them."""

from __future__ import annotations

import math
import re

N = r"(-?\d(?:[\d,]*\d)?(?:\.\d+)?(?:e[+-]?\d+)?|infinite|minus infinite|infinity|not a number|NaN)"
S = r"(\d(?:[\d,]*\d)?)"  # a step or a count


def read(text: str) -> float:
    """The number that a text of the pattern N names."""
    if text in ("infinite", "infinity"):
        return math.inf
    if text == "minus infinite":
        return -math.inf
    return math.nan if text in ("not a number", "NaN") else float(text.replace(",", ""))


def step(text: str) -> int:
    return int(text.replace(",", ""))


def says(text: str, value: float, slack: float = 0.75) -> bool:
    """Whether the text states this value, up to `slack` of a unit of its last digit. Whole numbers from 1,000 on have three
    significant digits."""
    said = read(text)
    if math.isnan(said) or math.isnan(value):
        return math.isnan(said) and math.isnan(value)
    if math.isinf(said) or math.isinf(value):
        return said == value
    return abs(said - value) <= slack * unit(text) + 1e-12 * abs(value)


def unit(text: str) -> float:
    """The value of one unit of the last digit that the text writes."""
    mantissa, _, exponent = text.replace(",", "").partition("e")
    scale = 10.0 ** int(exponent or 0)
    if "." in mantissa:
        return scale * 10.0 ** -len(mantissa.partition(".")[2])
    digits = mantissa.lstrip("-")
    zeros = max(0, len(digits) - 3) if len(digits) > 3 else 0
    return scale * 10.0**zeros


def sentences(text: str) -> list[str]:
    """The sentences of a text. A full stop inside a number or a name ends none."""
    return [part.strip() for part in re.split(r"(?<=[.!?])\s+(?=[A-Z|(\"'`])", text) if part.strip()]
