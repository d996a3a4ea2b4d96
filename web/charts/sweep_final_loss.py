"""Final loss of a sweep's runs by learning rate."""

from __future__ import annotations

from web.charts.parts import Chart, Figure, figure, line, markers


def build() -> Figure:
    curve = line("sweep/{map}", "{label}", "accent", each="map", width=1.8)
    curve.update(mode="lines+markers", marker={"size": 7}, hovertemplate="{label}<br>lr %{x}<br>loss %{y:.4g}<extra></extra>")
    lost = markers({"series": "sweep/{map}", "field": "nonfinite", "each": "map"}, "{label}: not finite", "danger", "x")
    lost.update(showlegend=False)
    drawn = figure([curve, lost], "final loss", x_title="learning rate", y_type="log")
    return drawn.update_xaxes(type="log", exponentformat="e")


CHART = Chart(
    name="sweep_final_loss",
    title="Final loss by learning rate",
    meaning="One line per map; lost runs at the edge.",
    scope="compare",
    build=build,
)
