"""The charts of the page of the paper: outcomes by learning rate, ranges, bounds near the boundary, perturbation errors."""

from __future__ import annotations

from functools import partial
from typing import Any

from web.charts.parts import Chart, Figure, figure, line, markers
from web.charts.several import ranges
from web.palette import COLORS


def lines(x_title: str, y_title: str, y_type: str = "log", y_range: list[float] | None = None, x_digits: str = ".4g") -> Figure:
    """One line with points per item, over a logarithmic horizontal axis."""
    curve = line("paper/{map}", "{label}", "accent", each="map", width=1.8)
    hover = f"{{label}}<br>{x_title} %{{x:{x_digits}}}<br>{y_title} %{{y:.4g}}<extra></extra>"
    curve.update(mode="lines+markers", marker={"size": 6}, hovertemplate=hover)
    lost = markers({"series": "paper/{map}", "field": "nonfinite", "each": "map"}, "{label}: no finite value", "danger", "x")
    lost.update(showlegend=False)
    drawn = figure([curve, lost], y_title, x_title=x_title, y_type=y_type).update_xaxes(type="log", exponentformat="e")
    if y_range is not None:
        drawn.layout.yaxis.range = y_range
    return drawn


def stability() -> Figure:
    """Marks of each map over the length of the sequence, hollow for runs that lived and filled for fatal steps, and one line."""
    edge = line("paper/edge", "e^(88.72/T) - 1", "muted", width=1.5)
    edge.update(hoverinfo="skip")
    traces = [edge]
    for state, symbol, label in (("lives", "circle-open", "{label}, lives"), ("died", "circle", "{label}, fatal step")):
        marks = line(f"paper/{state}-{{map}}", label, "accent", each="map")
        marks.update(mode="markers", marker={"size": 7, "symbol": symbol, "color": COLORS["accent"]}, line=None)
        marks.update(hovertemplate="%{text}<extra></extra>")
        traces.append(marks)
    drawn = figure(traces, "largest |λ| - 1", x_title="length T of the sequence", y_type="log")
    return drawn.update_xaxes(type="log", exponentformat="none")


def chart(name: str, title: str, meaning: str, build: Any) -> Chart:
    return Chart(name=name, title=title, meaning=meaning, scope="paper", build=build)


RATE = "learning rate"
CHARTS = (
    chart("paper_finite", "Finite runs", "Share of the runs of each map that stay finite, by learning rate.",
        partial(lines, RATE, "share of finite runs", "linear", [-0.04, 1.04])),
    chart("paper_loss", "Loss", "Median loss of the runs that learnt, by learning rate; a mark where none did.",
        partial(lines, RATE, "median loss")),
    chart("paper_accuracy", "Accuracy", "Median accuracy of the runs that learnt, by learning rate.",
        partial(lines, RATE, "median accuracy", "linear", [-0.04, 1.04])),
    chart("paper_ranges", "Ranges", "From the lower to the upper quartile over the seeds; the tick is the median.",
        partial(ranges, "value")),
    chart("paper_ratio", "Gradient scale over weight", "G / |w| by distance to the boundary; a flat line is balanced.",
        partial(lines, "1 - λ", "G / |w|")),
    chart("paper_scaling", "Output and gradient", "Largest output and largest gradient by distance to the boundary.",
        partial(lines, "1 - λ", "largest value")),
    chart("paper_negative", "Gradient bound at negative eigenvalues", "The bound of best by distance to -1.",
        partial(lines, "1 + λ", "G")),
    chart("paper_perturbation", "Perturbation error", "Median error of the perturbed model by size of the perturbation.",
        partial(lines, "β", "error")),
    chart("paper_stability", "Stability map", "Largest |λ| - 1 of each run by length of the sequence, with e^(88.72/T) - 1.",
        stability),
)  # fmt: skip
