"""The theory page's figures: every map, its gradient scale, and that over the weight by distance to the boundary."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from stablessm_core.theory import curves, gentlest_maps
from web.binding import bind
from web.figures import spec
from web.palette import COLORS, MAP_DASHES

POINTS = 201
NEAR_BOUNDARY = {"discrete": 0.99, "continuous": -0.01}


@cache
def theory_figures() -> dict[str, dict[str, Any]]:
    """{"discrete" | "continuous": {chart: bound figure}}."""
    return {time: _figures(time) for time in ("discrete", "continuous")}


def stable_maps(time: str) -> list[dict[str, Any]]:
    """Maps of this time that keep eigenvalues stable, with gradient scale / |w| near the boundary, the gentlest first."""
    return [{"name": name, "gradient_over_weight": ratio} for name, ratio in gentlest_maps(time, NEAR_BOUNDARY[time])]


def _figures(time: str) -> dict[str, Any]:
    found = curves(time, points=POINTS, largest_weight=6.0, largest_distance=0.5)
    items = [
        {"key": name, "label": name, "color": f"map-{name}", "dash": MAP_DASHES.get(name, "solid"), "column": 0} for name in found
    ]
    charts = {
        "theory_map": {name: (of.w, of.eigenvalue) for name, of in found.items()},
        "theory_gradient_scale": {name: (of.w, of.gradient_scale) for name, of in found.items()},
        "theory_gradient_over_weight": {name: (of.distance, of.gradient_over_weight) for name, of in found.items()},
    }
    return {chart: bind(spec(chart), _data(of), items=items, colors=COLORS) for chart, of in charts.items()}


def _data(lines: dict[str, tuple[np.ndarray, np.ndarray]]) -> dict[str, dict[str, np.ndarray]]:
    return {f"theory/{name}": {"step": x, "value": y[:, None]} for name, (x, y) in lines.items()}
