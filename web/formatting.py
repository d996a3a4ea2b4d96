"""Numbers, durations and times as text, for pages that the server renders; `static/lib/format.js` does the same in the browser.

A test compares both, because the numbers of a page must not change when its scripts start.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from decimal import ROUND_HALF_UP, Context, Decimal
from typing import Any

from stablessm_core.autopsy.changes import CHANGES
from stablessm_core.autopsy.words import BEGINS, SHOWS, describe_classes, describe_measurements
from stablessm_core.spec.layers import layers_text
from stablessm_core.spec.titles import setting_title
from stablessm_core.verdict import LABELS
from stablessm_core.verdict.causes import TESTED_BY
from stablessm_core.verdict.float64 import compare_with_float64
from stablessm_core.verdict.words import CONFIDENCE, OUTCOMES, THROWN_BY

WHOLE_BELOW = 1e9  # whole numbers below this limit are written out; larger numbers get an exponent


def number(value: Any, digits: int = 4) -> str:
    """The number with `digits` significant digits, such as 0.5, 1e-5 or 1e9; "NaN", "+Inf" or "−Inf"; "–" for None."""
    if value is None:
        return "–"
    x = float(value)
    if math.isnan(x):
        return "NaN"
    if math.isinf(x):
        return "+Inf" if x > 0 else "−Inf"
    size = abs(x)
    if x.is_integer() and size < WHOLE_BELOW:
        return f"{int(x):,}"
    if size < 1e-3 or size >= 1e6:
        mantissa, _, exponent = f"{_rounded(x, max(1, digits - 1)):e}".partition("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        return f"{mantissa}e{int(exponent)}"
    shown = f"{_rounded(x, digits):f}"
    return shown.rstrip("0").rstrip(".") if "." in shown else shown


def duration(seconds: float | None) -> str:
    if seconds is None or not math.isfinite(seconds) or seconds < 0:
        return "–"
    if seconds < 1:
        return "< 1 s"
    s = math.floor(seconds + 0.5)
    if s < 60:
        return f"{s} s"
    if s < 3600:
        return f"{s // 60} min {s % 60:02d} s"
    if s < 86_400:
        return f"{s // 3600} h {s % 3600 // 60:02d} min"
    return f"{s // 86_400} d {s % 86_400 // 3600} h"


def ago(epoch: float, now: float | None = None) -> str:
    """The time since `epoch` as text, in its largest unit, such as "3 min ago"; a later time gives "in 3 min"."""
    past = (time.time() if now is None else now) - epoch
    parts = duration(abs(past)).split(" ")
    span = " ".join(parts[:2])
    if past < -5:
        return f"in {span}"
    return "just now" if past < 5 else f"{span} ago"


def moment(epoch: float) -> str:
    """The day and time in UTC."""
    return datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def sentences(text: str, most: int) -> str:
    """The first sentences of a text, at most `most`."""
    parts = text.split(". ")
    return ". ".join(parts[:most]) + ("." if len(parts) > most else "")


def sentence(text: str) -> str:
    """The text with a capital letter and a full stop."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def quoted(text: str) -> str:
    """The text as a value of the filter language, in quotes."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


FILTERS: dict[str, Callable[..., Any]] = {
    "quoted": quoted,
    "number": number,
    "duration": duration,
    "ago": ago,
    "moment": moment,
    "layers": layers_text,
    "setting_title": setting_title,
    "sentence": sentence,
    "sentences": sentences,
    "compare_with_float64": compare_with_float64,
    "cause_label": lambda name: LABELS.get(name, name.replace("_", " ")),
    "tested_by": lambda name: TESTED_BY.get(name),
    "thrown_label": lambda name: THROWN_BY.get(name, ""),
    "confidence_label": lambda name: CONFIDENCE[name][0],
    "confidence_meaning": lambda name: CONFIDENCE[name][1],
    "outcome_mark": OUTCOMES.__getitem__,
    "trouble_shows": lambda kind: SHOWS.get(kind, "it first shows"),
    "measurements": lambda found: describe_measurements(found, number),
    "classes": describe_classes,
    "trouble_begins": BEGINS.__getitem__,
    "change_label": lambda name: CHANGES[name].label,
    "change_line": lambda name: CHANGES[name].line,
}


def _rounded(x: float, digits: int) -> Decimal:
    """The number rounded as in JavaScript: ties are rounded away from 0."""
    return Context(prec=digits, rounding=ROUND_HALF_UP).create_decimal(Decimal(x))
