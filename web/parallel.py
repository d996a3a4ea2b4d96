"""Parallel coordinates of several runs as plain SVG, with an axis per setting that differs and the result as the last axis."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from stablessm_core.spec.layers import layers_text

WIDTH, HEIGHT, TOP, BOTTOM, SIDE = 1000, 300, 34, 26, 70
MAX_AXES = 8
LOST = "lost"
TICKS = 6
LETTER = 6.4  # width of a letter in a tick label, in pixels; a label that would reach the next axis is shortened


def parallel_lines(compare: Mapping[str, Any]) -> dict[str, Any] | None:
    """From the JSON of GET /api/compare: width, height, axes [{x, title, field, ticks: [{y, text}]}], lines [{run, points, …}].

    An axis is logarithmic if its numbers are all positive and span more than a factor of 20. A lost run ends at a mark above the
    losses; a run without a result ends before the last axis. None if all settings are equal or there are fewer than two runs.
    """
    fields = compare["differences"][:MAX_AXES]
    if not fields or len(compare["runs"]) < 2:
        return None
    ends = compare["ends"]
    losses = [end["loss"] if end["outcome"] in ("stable", "unstable", "unknown") else None for end in ends]
    result = [LOST if end["outcome"] == LOST else loss for end, loss in zip(ends, losses, strict=True)]
    columns = [(row["field"], row["values"], False) for row in fields] + [("final loss", result, True)]
    step = (WIDTH - 2 * SIDE) / (len(columns) - 1)
    axes, heights = [], []
    for i, (field, values, is_result) in enumerate(columns):
        ticks, at = _scale(values, is_result)
        room = int(step / LETTER) - 2
        ticks = [tick | {"text": tick["text"] if len(tick["text"]) <= room else tick["text"][: room - 1] + "…"} for tick in ticks]
        axes.append({"x": round(SIDE + i * step, 1), "field": field, "title": _short(field), "ticks": ticks})
        heights.append(at)
    lines = []
    layers = [layers_text(run["config"]) for run in compare["runs"]]  # colours show the layers if the runs differ in them
    for j, run in enumerate(compare["runs"]):
        points = [(axes[i]["x"], at[j]) for i, at in enumerate(heights)]
        drawn = " ".join(f"{x},{y:.1f}" for x, y in points if y is not None)
        forms = run["forms"]
        kind = {"layer": layers[j] if len(set(layers)) > 1 else "", "map": forms[0]["map"] if forms else ""}
        lines.append({"run": run["id"], **kind, "outcome": ends[j]["outcome"], "points": drawn})
    return {"width": WIDTH, "height": HEIGHT, "top": TOP, "bottom": HEIGHT - BOTTOM, "axes": axes, "lines": lines}


def _scale(values: Sequence[Any], is_result: bool) -> tuple[list[dict[str, Any]], list[float | None]]:
    """The ticks of an axis, and the height of each value on the axis."""
    numbers = [v for v in values if isinstance(v, int | float) and not isinstance(v, bool) and math.isfinite(v)]
    if (is_result and numbers) or (numbers and len(numbers) == len(values)):
        top = TOP + (34 if is_result and LOST in values else 0)
        ticks, at = _numeric(numbers, top)
        found = [LOST_Y if v == LOST else at(v) if isinstance(v, int | float) and math.isfinite(v) else None for v in values]
        return ticks + ([{"y": LOST_Y, "text": LOST}] if LOST in values else []), found
    names = list(dict.fromkeys(_text(v) for v in values if not (is_result and v is None)))
    place = {name: _between(TOP, i / max(len(names) - 1, 1) if len(names) > 1 else 0.5) for i, name in enumerate(names)}
    shown = names if len(names) <= 16 else names[:: -(-len(names) // 16)]
    return [{"y": round(place[n], 1), "text": n} for n in shown], [place.get(_text(v)) for v in values]


LOST_Y = float(TOP)


def _numeric(numbers: Sequence[float], top: float) -> tuple[list[dict[str, Any]], Any]:
    low, high = min(numbers), max(numbers)
    log = low > 0 and high > 20 * low
    a, b = (math.log(low), math.log(high)) if log else (low, high)

    def at(value: float) -> float:
        share = ((math.log(value) if log else value) - a) / (b - a) if b > a else 0.5
        return _between(top, 1 - share)

    different = sorted(set(numbers))
    if len(different) > TICKS:
        steps = [a + (b - a) * i / (TICKS - 2) for i in range(TICKS - 1)]
        different = [math.exp(s) if log else s for s in steps]
    return [{"y": round(at(v), 1), "text": f"{v:.3g}"} for v in different], at


def _between(top: float, share: float) -> float:
    """The vertical position at the fraction `share` from the top of an axis to its bottom."""
    return top + share * (HEIGHT - BOTTOM - top)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "none" if value is None else json.dumps(value)


def _short(field: str) -> str:
    return field.removesuffix(".name").split(".")[-1]
