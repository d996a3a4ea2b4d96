"""The values of a sweep's axis as a person writes them: a list, JSON, or ranges such as `0-4` and `1e-4..1e-1 log 4`.

`web/static/new/axis_values.js` parses the same texts in the form (a test compares the two).
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

NUMBER = r"[+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?"
INTEGERS = re.compile(r"(\d+)\s*(?:-|\.\.)\s*(\d+)", re.ASCII)
SPACED = re.compile(rf"({NUMBER})\s*\.\.\s*({NUMBER})\s+(log|linear)\s+(\d+)", re.ASCII | re.IGNORECASE)
MAX_VALUES = 2000
DIGITS = 10  # significant digits of the numbers of a spaced range


def axis_values(text: str) -> list[Any]:
    """The values in the text; a text that is no number, range or JSON stays text. Empty for an empty text.

    `0-4` and `0..4` are 0, 1, 2, 3, 4. `1e-4..1e-1 log 4` are four numbers with equal ratios; `0..1 linear 5` are five numbers
    with equal differences.
    """
    try:
        return list(json.loads(f"[{text}]", parse_constant=_refuse))
    except (ValueError, RecursionError):
        parts = [part.strip() for part in text.split(",")]
        return [value for part in parts if part for value in _values(part)][:MAX_VALUES]


def _refuse(constant: str) -> Any:
    raise ValueError(constant)  # JSON has no NaN and no infinities


def _values(part: str) -> list[Any]:
    if (found := INTEGERS.fullmatch(part)) and len(found[1]) < 10 > len(found[2]):
        first, last = int(found[1]), int(found[2])
        if first <= last < first + MAX_VALUES:
            return list(range(first, last + 1))
    if (found := SPACED.fullmatch(part)) and len(found[4]) < 6:
        spaced = _spaced(float(found[1]), float(found[2]), found[3].lower(), int(found[4]))
        if spaced:
            return spaced
    if part in ("true", "false", "null"):
        return [json.loads(part)]
    number = float(part) if re.fullmatch(NUMBER, part, re.ASCII | re.IGNORECASE) else math.nan
    if not math.isfinite(number):
        return [part]
    return [int(number) if number.is_integer() and abs(number) < 2**53 and re.fullmatch(r"[+-]?\d+", part) else number]


def _spaced(first: float, last: float, kind: str, count: int) -> list[float]:
    """`count` numbers from `first` to `last`; empty if there is no such range."""
    if not 2 <= count <= MAX_VALUES or not (math.isfinite(first) and math.isfinite(last)):
        return []
    if kind == "log" and not (first > 0 and last > 0):
        return []
    shares = [i / (count - 1) for i in range(count)]
    if kind == "log":
        numbers = [10 ** (math.log10(first) * (1 - share) + math.log10(last) * share) for share in shares]
    else:
        numbers = [first * (1 - share) + last * share for share in shares]
    return [float(f"{number:.{DIGITS}g}") for number in numbers]
