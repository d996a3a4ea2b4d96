"""Small pictures of layers as plain SVG coordinates: eigenvalues in the unit disc or by their distance, ratios on one axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

DISTANCES = (-4, 0)  # log10 of the limits of the distance axis; smaller distances are drawn at the end of the axis
BINS = 32
RATIOS = (-2, 3)  # log10 of the limits of the ratio axis


def start_picture(start: Mapping[str, Any]) -> dict[str, Any]:
    """From `start` of GET /api/systems: {kind: "disc", path} in a circle of radius 1, or {kind: "bars", bars: [{x, y, height}]}.

    The disc's path consists of one dot per eigenvalue. Bars count eigenvalues over log10 of their distance, on an axis of width 1
    from 10^-4 to 1; the tallest bar has height 1.
    """
    if start["phase"] is not None:
        places = [((1 - d) * math.cos(a), -(1 - d) * math.sin(a)) for d, a in zip(start["distance"], start["phase"], strict=True)]
        return {"kind": "disc", "path": "".join(f"M{x:.3f} {y:.3f}h0" for x, y in places)}
    counts = [0] * BINS
    for distance in start["distance"]:
        counts[min(BINS - 1, int(BINS * share(distance, DISTANCES)))] += 1
    tallest = max(counts)
    bars = [
        {"x": round(i / BINS, 4), "y": round(1 - count / tallest, 3), "height": round(count / tallest, 3)}
        for i, count in enumerate(counts)
        if count
    ]
    return {"kind": "bars", "bars": bars}


def ratio_picture(ratios: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """A bar for each of `gradient_over_weight` of GET /api/systems: {map, low, middle, high} on an axis of width 1."""
    return [
        {"map": one["map"], **{to: share(one[of], RATIOS) for to, of in (("low", "min"), ("middle", "median"), ("high", "max"))}}
        for one in ratios
        if one["finite"]
    ]


def share(value: float, decades: tuple[int, int]) -> float:
    """Position of a value on a logarithmic axis of width 1, limited to its ends."""
    low, high = decades
    at = (math.log10(value) - low) / (high - low) if value > 0 else 0.0
    return round(min(1.0, max(0.0, at)), 4)
