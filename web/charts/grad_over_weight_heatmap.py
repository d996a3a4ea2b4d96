"""Gradient over weight of every eigenvalue at every step, as colours."""

from __future__ import annotations

from stablessm_core.nonfinite import INFINITY, MINUS_INFINITY, NAN
from web.charts.parts import Chart, Figure, figure, go, markers, notes


def build() -> Figure:
    series, gradient = "ssm/{layer}/grad_over_weight", "ssm/{layer}/gradient"
    heat = go.Heatmap(
        meta={"series": series, "field": "heat"},
        name="log10 |grad| / |w|",
        colorscale="Viridis",
        hoverongaps=False,
        colorbar={"title": {"text": "|grad|/|w|", "side": "right"}, "tickprefix": "1e", "thickness": 12, "outlinewidth": 0},
        hovertemplate="step %{x}, eigenvalue %{y}<br>log10 %{z:.3f}<extra></extra>",
    )
    special = {NAN: "#ff2fb3", INFINITY: "#ff3b30", MINUS_INFINITY: "#00c8ff"}
    cells = [
        go.Heatmap(
            meta={"series": series, "field": "heat_is", "kind": kind},
            name={NAN: "NaN", INFINITY: "+Inf", MINUS_INFINITY: "-Inf"}[kind],
            colorscale=[[0, color], [1, color]],
            showscale=False,
            showlegend=True,
            hoverongaps=False,
            hovertemplate="step %{x}, eigenvalue %{y}<br>" + kind + "<extra></extra>",
        )
        for kind, color in special.items()
    ]
    rows = markers(
        {"series": series, "field": "heat_rows", "unless": gradient}, "row with NaN / Inf", "danger", "triangle-left", size=8
    )
    rows.update(xaxis="x2", yaxis="y", showlegend=False)
    beside = {"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True}  # 1 is the right edge
    return figure([heat, *cells, rows, *notes(series, unless=gradient)], "eigenvalue", xaxis2=beside)


CHART = Chart(
    name="grad_over_weight_heatmap",
    title="Gradient over weight, every eigenvalue",
    meaning="One row per eigenvalue, one column per step; colour is log10 of |dL/dw| / |w|.",
    scope="layer",
    build=build,
    alerts=("ssm/{layer}/grad_over_weight",),
    placed=True,
)
