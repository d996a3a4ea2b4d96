"""Ticks of a logarithmic axis that spans less than two decades, where Plotly writes single digits such as 2 and 5.

`static/chart/log_ticks.js` computes the same ticks on the page (a test compares the two).
"""

from __future__ import annotations

import math
from typing import Any

DECADES = 2.0
WANTED = 5  # number of ticks on an axis below one decade


def log_ticks(low: float, high: float) -> dict[str, Any]:
    """The settings of an axis that shows the values from `low` to `high`; empty if Plotly's own ticks are readable."""
    if not (0 < low < high < math.inf) or math.log10(high / low) >= DECADES:
        return {}
    if high / low >= 10:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        ticks = [(m * 10.0**e, 10.0**e) for e in decades for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    else:
        step = _nice((high - low) / WANTED)
        ticks = [(k * step, step) for k in range(math.ceil(low / step), math.floor(high / step) + 1)]
    values = [value for value, _ in ticks]
    return {"tickmode": "array", "tickvals": values, "ticktext": [_text(value, step) for value, step in ticks]}


def _nice(rough: float) -> float:
    """The smallest of 1, 2 and 5 times a power of ten that is at least `rough`."""
    power = 10.0 ** math.floor(math.log10(rough))
    return float(next((m * power for m in (1, 2, 5) if m * power >= rough), 10 * power))


def _text(value: float, step: float) -> str:
    """The value with the digits that the step needs, such as 0.25, 1200 or 2.5e-7."""
    digits = -math.floor(math.log10(step) + 1e-9)
    exponent = math.floor(math.log10(value) + 1e-9)
    if -4 <= exponent <= 5:
        return f"{value:.{max(0, digits)}f}"
    return f"{value / 10.0**exponent:.{max(0, exponent + digits)}f}e{exponent}"
