"""Checks of values from other programs: one exception for every refusal, and the bounds of a JSON value that we only keep.

A value that passes `check_json` can be stored in SQLite and PostgreSQL, and read and shown without further care.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

MAX_DEPTH = 32
MAX_JSON_BYTES = 64 << 10
MAX_KEY = 200  # characters in the name of a field
MAX_INTEGER = 2**63
# PostgreSQL stores neither the character NUL nor half of a surrogate pair
UNSTORABLE = re.compile("[\x00\ud800-\udfff]")


class Refused(ValueError):
    """A value that is not allowed. field: its place, with dots. given, allowed: as text."""

    def __init__(self, field: str, given: str, allowed: str) -> None:
        super().__init__(f"{field} is {given}; allowed: {allowed}")
        self.field, self.given, self.allowed = field, given, allowed


def shown(value: Any) -> str:
    """The value as short text, for an error message."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= MAX_INTEGER:
        return "an integer of more than 63 bits"
    if isinstance(value, dict | list):
        return f"{'an object' if isinstance(value, dict) else 'a list'} of {len(value):,}"
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def check_json(value: Any, field: str, *, max_bytes: int = MAX_JSON_BYTES, max_depth: int = MAX_DEPTH) -> None:
    """Raises Refused for a JSON value that is too large or too deep, or that a database or a page could not keep exactly.

    value: what `json.loads` returned. NaN and infinities are allowed.
    """
    _walk(value, field, max_depth)
    size = len(json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode())
    if size > max_bytes:
        raise Refused(field, f"{size:,} bytes of JSON", f"at most {max_bytes:,} bytes")


def _walk(value: Any, field: str, depth: int) -> None:
    if depth == 0:
        raise Refused(field, "nested too deeply", f"at most {MAX_DEPTH} levels")
    if isinstance(value, str):
        text(value, field, MAX_JSON_BYTES)
    elif isinstance(value, int):
        if abs(value) >= MAX_INTEGER:
            raise Refused(field, shown(value), "integers of at most 63 bits")
    elif isinstance(value, dict):
        for key, item in value.items():
            text(key, field, MAX_KEY)
            _walk(item, field, depth - 1)
    elif isinstance(value, list):
        for item in value:
            _walk(item, field, depth - 1)


def text(value: Any, field: str, most: int, *, least: int = 0, pattern: re.Pattern[str] | None = None) -> str:
    """The value, if it is a text of this length that a database can store. Raises Refused."""
    if not isinstance(value, str):
        raise Refused(field, shown(value), f"a text of at most {most:,} characters")
    if not least <= len(value) <= most:
        raise Refused(field, f"{len(value):,} characters long", f"{least:,} to {most:,} characters")
    if UNSTORABLE.search(value):
        raise Refused(field, shown(value), "text without the character NUL and without half of a surrogate pair")
    if pattern is not None and not pattern.fullmatch(value):
        raise Refused(field, shown(value), f"text that matches {pattern.pattern}")
    return value


def integer(value: Any, field: str, least: int, most: int) -> int:
    """The value, if it is an integer from `least` to `most`. Raises Refused."""
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise Refused(field, shown(value), f"integers from {least:,} to {most:,}")
    return value


def number(value: Any, field: str, least: float = -math.inf, most: float = math.inf) -> float:
    """The value as float, if it is a number in this range and not NaN. Raises Refused."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Refused(field, shown(value), "a number")
    try:
        found = float(value)
    except OverflowError:
        raise Refused(field, shown(value), "a number that a double can hold") from None
    if not least <= found <= most:
        raise Refused(field, shown(value), f"numbers from {least:g} to {most:g}")
    return found


def entries(value: Any, field: str, most: int) -> list[Any]:
    """The value, if it is a list of at most `most` entries. Raises Refused."""
    if not isinstance(value, list):
        raise Refused(field, shown(value), "a list")
    if len(value) > most:
        raise Refused(field, f"{len(value):,} entries long", f"at most {most:,} entries")
    return value


def fields(value: Any, field: str, required: frozenset[str], optional: frozenset[str] = frozenset()) -> dict[str, Any]:
    """The value, if it is an object with these fields and no others. Raises Refused."""
    inside = f"{field}." if field else ""
    if not isinstance(value, dict):
        raise Refused(field, shown(value), "an object")
    for name in sorted(required - value.keys()):
        raise Refused(f"{inside}{name}", "missing", "needed")
    for name in value.keys() - required - optional:
        raise Refused(f"{inside}{shown(name)[1:-1][:60]}", "unknown", ", ".join(sorted(required | optional)))
    return value
