"""The values of a filter: numbers, times and durations."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from datetime import UTC, datetime

from server.search.filter_syntax import Text

NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|nan|[+-]?inf(inity)?", re.IGNORECASE | re.ASCII)
LENGTH = re.compile(r"(\d+(?:\.\d+)?)(w|d|h|m|s)", re.ASCII)
DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?", re.ASCII)
SECONDS = {"w": 604_800.0, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
LENGTHS = "seconds, or a length of time such as 90s, 10m, 1h30m, 7d, 2w"
TIMES = (
    "a day such as 2026-11-01 (UTC), a moment such as 2026-11-01T09:30, an age such as 7d or 1h30m, seconds since 1970, or null"
)


@dataclass(frozen=True)
class Span:
    """A day or a moment, from `low` to `high` in UTC epoch seconds (equal for a moment), or an age of `age` seconds."""

    low: float = 0.0
    high: float = 0.0
    age: float | None = None


def number_of(value: Text) -> float:
    """The number in the text. Raises FilterError."""
    if not NUMBER.fullmatch(value.text):
        raise value.refused(f"{value.text[:40]!r} is not a number", "a number, nan, inf, -inf or null")
    return float(value.text)


def seconds_of(value: Text) -> float:
    """The seconds in a duration or a plain number. Raises FilterError."""
    length = _length(value.text)
    if length is not None:
        return length
    if not NUMBER.fullmatch(value.text) or math.isnan(float(value.text)):
        raise value.refused(f"{value.text[:40]!r} is not a length of time", LENGTHS)
    return float(value.text)


def span_of(value: Text) -> Span:
    """The span that a day, a moment, an age or a number describes. Raises FilterError."""
    if (age := _length(value.text)) is not None:
        return Span(age=age)
    if DAY.fullmatch(value.text) or MOMENT.fullmatch(value.text):
        try:
            moment = datetime.fromisoformat(value.text)
        except ValueError as error:
            raise value.refused(f"{value.text!r} is not in the calendar: {error}", TIMES) from None
        start = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        return Span(start, start + 86_400.0 if DAY.fullmatch(value.text) else start)
    if NUMBER.fullmatch(value.text) and not math.isnan(moment_number := float(value.text)):
        return Span(moment_number, moment_number)
    raise value.refused(f"{value.text[:40]!r} is not a time", TIMES)


def _length(text: str) -> float | None:
    parts = LENGTH.findall(text)
    if not parts or "".join(f"{count}{unit}" for count, unit in parts) != text:
        return None
    return sum(float(count) * SECONDS[unit] for count, unit in parts)
