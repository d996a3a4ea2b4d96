"""A run's memory function as plain SVG coordinates, beside the kernel of its task, on two logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

WIDTH, HEIGHT = 600.0, 220.0
DECADES = 6  # smaller values than the largest by more than this are left out


def memory_picture(answer: Mapping[str, Any]) -> dict[str, Any] | None:
    """From the MemoryAnswer: {width, height, lines: [{name, path}], lags: [{x, label}], values: [{y, label}]}; None without data.

    The horizontal axis is log(t + 1), because the lags begin at 0.
    """
    named = (("memory", answer["memory"]), ("kernel", answer["kernel"] or []))
    known = [abs(v) for _, values in named for v in values if isinstance(v, int | float) and math.isfinite(v) and v]
    if not known or len(answer["lags"]) < 2:
        return None
    top = math.ceil(math.log10(max(known)))
    bottom = max(math.floor(math.log10(min(known))), top - DECADES)
    last = math.log(len(answer["lags"]))

    def x(lag: int) -> float:
        return round(WIDTH * math.log(lag + 1) / last, 1)

    def y(value: float) -> float:
        return round(HEIGHT * (top - math.log10(value)) / (top - bottom), 1)

    lines = [{"name": name, "path": _path(values, x, y, 10.0**bottom)} for name, values in named if values]
    lags = [lag for lag in (0, 1, 3, 10, 30, 100, 300) if lag < len(answer["lags"])]
    return {
        "width": WIDTH,
        "height": HEIGHT,
        "lines": lines,
        "lags": [{"x": x(lag), "label": str(lag)} for lag in lags],
        "values": [{"y": y(10.0**power), "label": f"{10.0**power:g}"} for power in range(bottom, top + 1)],
    }


def _path(values: Sequence[Any], x: Any, y: Any, least: float) -> str:
    """The line through the finite values of at least `least`, with gaps elsewhere."""
    pieces, pen = [], "M"
    for lag, value in enumerate(values):
        if isinstance(value, int | float) and math.isfinite(value) and abs(value) >= least:
            pieces.append(f"{pen}{x(lag)} {y(abs(value))}")
            pen = "L"
        else:
            pen = "M"
    return "".join(pieces)
