"""The figures of the theory page: the curves of every map over weight and over distance, and memory curves of eigenvalues."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stablessm_core.maps import formulas
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.stability import relative_slope
from stablessm_core.theory.memory import nearest_memory, polynomial_memory
from stablessm_core.theory.slopes import Array, curves
from web.binding import bind
from web.figures import spec
from web.palette import COLORS, MAP_DASHES

POINTS = 201
MEMORY_STEPS = np.unique(np.geomspace(1, 10_000, 300).round()) - 1
SINGLE = (0.5, 0.9, 0.99, 0.999)  # single eigenvalues whose memory curve is shown
Lines = Mapping[str, tuple[Array, Array]]


@dataclass(frozen=True)
class Weights:
    """A layer of a stored run: the form of its eigenvalues, and the recorded values of its weights at one step."""

    label: str
    form: Form
    recorded: Mapping[str, Array]
    first: Mapping[str, Array]  # the same values at the run's first step


def theory_figures(
    time: str, a: float, b: float, weights: Weights | None = None, *, maps: Sequence[str] | None = None, chart: str | None = None
) -> dict[str, Any]:
    """{chart: bound figure} of the maps in discrete or continuous time. a and b are the constants of the map `best`.

    weights: a layer whose weights are shown as points in every chart of maps. maps: the maps whose curves are drawn; by default
    all maps. chart: the only chart to draw; by default all charts.
    """
    lines = {
        name: {map_: xy for map_, xy in by_map.items() if maps is None or map_ in maps}
        for name, by_map in _curves(time, a, b).items()
    }
    points = _points(weights) if weights is not None and weights.form.time == time else {}
    items = [
        {"key": name, "label": name, "color": f"map-{name}", "dash": MAP_DASHES.get(name, "solid"), "column": 0}
        for name in lines["theory_map"]
    ]
    figures = {name: _bound(name, xy, items, points.get(name)) for name, xy in lines.items() if chart in (None, name)}
    return figures | ({"theory_memory": _memory(weights)} if chart in (None, "theory_memory") else {})


@lru_cache(maxsize=64)
def _curves(time: str, a: float, b: float) -> dict[str, Lines]:
    found = curves(time, a=a, b=b, points=POINTS, largest_weight=6.0, largest_distance=0.5)
    return {
        "theory_map": {name: (of.w, of.eigenvalue) for name, of in found.items()},
        "theory_relative_slope": {name: (of.distance, of.relative_slope) for name, of in found.items()},
        "theory_gradient_scale": {name: (of.w, of.gradient_scale) for name, of in found.items()},
        "theory_gradient_over_weight": {name: (of.distance, of.gradient_over_weight) for name, of in found.items()},
    }


def _points(weights: Weights) -> dict[str, tuple[Array, Array]]:
    form, w = weights.form, np.asarray(weights.recorded["weight"], np.float64)
    map_ = formulas(form.map, form.time, np, a=form.a, b=form.b)
    with np.errstate(all="ignore"):
        eigenvalue, scale = map_.f(w), map_.gradient_scale(w)
        distance = 1 - np.abs(eigenvalue) if form.time == "discrete" else -eigenvalue
        return {
            "theory_map": (w, eigenvalue),
            "theory_gradient_scale": (w, scale),
            "theory_gradient_over_weight": (distance, scale / np.abs(w)),
            "theory_relative_slope": (distance, relative_slope(form, weights.recorded)),
        }


def _memory(weights: Weights | None) -> dict[str, Any]:
    wanted = polynomial_memory(MEMORY_STEPS)
    lines: dict[str, tuple[str, str, Any]] = {"wanted": ("polynomial, (t + 1)^-1.1", "ink", wanted)}
    for number, lambda_ in enumerate(SINGLE):
        lines[f"single-{number}"] = (f"one eigenvalue {lambda_:g}", f"line-{number}", lambda_**MEMORY_STEPS)
    if weights is not None and not weights.form.complex:  # the memory of an oscillation cannot be compared with real eigenvalues
        for when, recorded, color in (("first", weights.first, "line-7"), ("shown", weights.recorded, "accent")):
            eigenvalue = weights.form.derive("eigenvalue", {k: np.asarray(v, np.float64) for k, v in recorded.items()})
            label = f"best of {weights.label}" + (", at its first step" if when == "first" else "")
            finite = eigenvalue[np.isfinite(eigenvalue)]
            lines[when] = (label, color, np.abs(nearest_memory(finite, wanted, MEMORY_STEPS)))
    items = [
        {"key": key, "label": label, "color": color, "dash": "dash" if key == "wanted" else "solid", "column": 0}
        for key, (label, color, _) in lines.items()
    ]
    data = {f"theory/{key}": {"step": MEMORY_STEPS + 1, "value": y[:, None]} for key, (_, _, y) in lines.items()}
    return _without_empty_traces(bind(spec("theory_memory"), data, items=items, colors=COLORS))


def _bound(chart: str, lines: Lines, items: list[dict[str, Any]], points: tuple[Array, Array] | None) -> dict[str, Any]:
    data = {f"theory/{name}": {"step": x, "value": y[:, None]} for name, (x, y) in lines.items()}
    if points is not None:
        data["theory/weights"] = {"step": points[0], "value": points[1][:, None]}
    return _without_empty_traces(bind(spec(chart), data, items=items, colors=COLORS))


def _without_empty_traces(figure: dict[str, Any]) -> dict[str, Any]:
    return figure | {"data": [trace for trace in figure["data"] if trace["x"]]}
