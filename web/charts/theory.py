"""The charts of the theory page: a line per map, and a run's weights as points in charts that can show them."""

from __future__ import annotations

from functools import partial
from typing import Any

from web.charts.parts import Chart, Figure, figure, line
from web.palette import COLORS

DISTANCE = "distance to the boundary"


def curves(x_title: str, y_title: str, y_range: list[float], x_type: str, y_type: str, points: bool) -> Figure:
    """One line per map. points: whether the chart also has a trace for the weights of a run."""
    curve = line("theory/{map}", "{label}", "accent", each="map", width=1.8)
    curve.update(hovertemplate="{label}<br>%{x:.4g}<br>%{y:.4g}<extra></extra>")
    traces = [curve]
    if points:
        weights = line("theory/weights", "the run's weights", "ink")
        look = {"size": 7, "symbol": "circle-open", "color": COLORS["ink"], "line": {"width": 1.5}}
        weights.update(mode="markers", marker=look, hovertemplate="%{x:.6g}<br>%{y:.6g}<extra>weight</extra>")
        traces.append(weights)
    # all charts share one legend of the maps, which the page shows beside them
    legend = {} if not points else {"showlegend": False}
    drawn = figure(traces, y_title, x_title=x_title, y_type=y_type, **legend).update_xaxes(type=x_type, exponentformat="e")
    drawn.layout.yaxis.range = y_range
    return drawn


def chart(name: str, title: str, meaning: str, x_title: str, y_title: str, y_range: list[float], **axes: Any) -> Chart:
    axes = {"x_type": "linear", "y_type": "linear", "points": True, **axes}
    build = partial(curves, x_title, y_title, y_range, **axes)
    return Chart(name=name, title=title, meaning=meaning, scope="theory", build=build)


CHARTS = (
    # each row: name, title, meaning, horizontal axis, vertical axis, range of the vertical axis
    chart("theory_map", "Map", "Eigenvalue f(w) as a function of the trainable weight w.", "w", "f(w)", [-3, 3]),
    chart("theory_gradient_scale", "Gradient scale G_f", "Bound on |dL/dw| up to a constant (theorem 3.6).",
        "w", "G_f(w)", [-3, 4], y_type="log"),
    chart("theory_gradient_over_weight", "Gradient scale over weight",
        "G_f / |w| against the distance of the eigenvalue to the boundary; the line of a stable map is flat.",
        DISTANCE, "G_f / |w|", [-4, 9], x_type="log", y_type="log"),
    chart("theory_relative_slope", "Relative slope R_f",
        "Fraction of its distance to the boundary by which an eigenvalue moves per unit of weight, against that distance.",
        DISTANCE, "R_f", [-4, 4.5], x_type="log", y_type="log"),
    chart("theory_memory", "Memory function", "Share of an input that remains in the state t steps later.",
        "steps since the input", "share that is left", [-6, 0.3], x_type="log", y_type="log", points=False),
)  # fmt: skip
