"""How a verdict writes numbers."""

from __future__ import annotations

import math

from stablessm_core.telemetry.boundary import is_capped


def number(x: float, digits: int = 3) -> str:
    """The number x as text for users: in decimal notation from 0.001 to 100,000, otherwise with a power of ten."""
    if not math.isfinite(x):
        return "not a number" if math.isnan(x) else "infinite"
    if x == 0:
        return "0"
    if 1e-3 <= abs(x) < 1e5:
        text = f"{x:.{digits}g}"
        return f"{float(text):,.0f}" if "e" in text or abs(x) >= 1000 else text
    mantissa, exponent = f"{x:.1e}".split("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}"


def bounded(x: float) -> str:
    """The number, or "more than 8e307" where it is a cap: exponentials are cut off, so that the true number is larger."""
    if not is_capped(x):
        return number(x)
    unit = 10.0 ** math.floor(math.log10(abs(x)))
    return f"more than {number(math.floor(abs(x) / unit) * unit)}"


def near_one(x: float) -> str:
    """A number with enough digits to tell it from 1."""
    if is_capped(x):
        return bounded(x)
    away = abs(abs(x) - 1)
    return number(x) if away == 0 or away >= 0.01 else f"{x:.{min(9, 2 - math.floor(math.log10(away)))}g}"


def power(size: float, length: int) -> str:
    """The power of an absolute value as text, such as "|2.4203|^100 = 2.4e38". The size has enough digits to check the power."""
    if is_capped(size) or not math.isfinite(size):
        return f"its absolute value is {bounded(size)}, over {length} steps"
    exponent = length * math.log10(size)
    mantissa = 10 ** (exponent - math.floor(exponent))
    digits = max(3, 3 + math.floor(math.log10(length)))
    shown = number(size**length) if exponent < 300 else f"{mantissa:.1f}e{math.floor(exponent)}"
    text = f"{size:.{digits}g}"
    return f"|{near_one(size) if float(text) == 1 else text}|^{length} = {shown}"


def value_of(x: float) -> str:
    """A number, "NaN", "infinite" or "minus infinite"."""
    return "NaN" if math.isnan(x) else number(x)


def plural(count: int, what: str) -> str:
    """ "1 step" or "3 steps"."""
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def ordinal(count: int) -> str:
    """ "2nd" or "5th"."""
    ending = "th" if count % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(count % 10, "th")
    return f"{count:,}{ending}"
