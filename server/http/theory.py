"""The theory page's numbers: every map, its gradient scale, and that over the weight by distance to the boundary."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from stablessm_core import formulas
from stablessm_core.formulas import FORMS
from web.binding import bind
from web.figures import spec
from web.palette import COLORS, MAP_DASHES

POINTS = 201
NEAR_BOUNDARY = {"discrete": 0.99, "continuous": -0.01}
UNGUARDED = ("direct", "relu", "clip")


@cache
def theory_figures() -> dict[str, dict[str, Any]]:
    """{"discrete" | "continuous": {chart: bound figure}}."""
    return {time: _figures(time) for time in ("discrete", "continuous")}


def stable_maps(time: str) -> list[dict[str, Any]]:
    """Maps of this time form that keep eigenvalues stable, with |gradient scale| / |w| near the boundary, the gentlest first."""
    found = []
    for name in (n for n, forms in FORMS.items() if time in forms and n not in UNGUARDED):
        if formulas.reachable_interval(name, time).contains(NEAR_BOUNDARY[time]):
            w = formulas.inverse(name, time, np.array([NEAR_BOUNDARY[time]]), np)
            ratio = float(np.abs(formulas.gradient_scale(name, time, w, np) / w)[0])
            found.append({"name": name, "gradient_over_weight": ratio})
    return sorted(found, key=lambda one: one["gradient_over_weight"])


def _figures(time: str) -> dict[str, Any]:
    names = [name for name, forms in FORMS.items() if time in forms]
    items = [{"key": name, "label": name, "color": f"map-{name}", "dash": MAP_DASHES[name], "column": 0} for name in names]
    weight = np.linspace(-6.0, 6.0, POINTS)
    eigenvalue = 1 - np.geomspace(1e-4, 0.5, POINTS) if time == "discrete" else -np.geomspace(1e-4, 0.5, POINTS)
    with np.errstate(all="ignore"):  # infinities at the boundary are the message of these charts
        charts = {
            "theory_map": {n: (weight, formulas.f(n, time, weight, np)) for n in names},
            "theory_gradient_scale": {n: (weight, formulas.gradient_scale(n, time, weight, np)) for n in names},
            "theory_gradient_over_weight": {n: _over_weight(n, time, eigenvalue) for n in names},
        }
    figures = {}
    for chart, curves in charts.items():
        data = {f"theory/{name}": {"step": x, "value": y[:, None]} for name, (x, y) in curves.items()}
        figures[chart] = bind(spec(chart), data, items=items, colors=COLORS)
    return figures


def _over_weight(name: str, time: str, eigenvalue: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    interval = formulas.reachable_interval(name, time)
    reached = eigenvalue[[interval.contains(float(e)) for e in eigenvalue]]
    w = formulas.inverse(name, time, reached, np)
    distance = 1 - reached if time == "discrete" else -reached
    return distance, np.abs(formulas.gradient_scale(name, time, w, np) / w)
