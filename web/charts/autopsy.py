"""The charts of an autopsy: the largest magnitude in each module, and the losses of the counterfactuals.

`static/run/autopsy_figures.js` fills in the findings; the server draws no pictures of these charts.
"""

from __future__ import annotations

import math
from typing import Any

from web.charts.parts import Chart, Figure, figure, line, markers
from web.palette import COLORS

FLOAT32_LIMIT = 3.4028235e38


def modules() -> Figure:
    """A row per module, in the order of computation, from the top. The horizontal axis shows magnitudes."""
    limits = []
    for value, name, color, width in (
        (FLOAT32_LIMIT, "3.4e38, float32's limit", "danger", 1.6),
        (math.sqrt(FLOAT32_LIMIT), "1.8e19, its square root", "warning", 0.8),
    ):
        limit = line("", name, color, field="limit", dash="dash", width=width, hoverinfo="skip")
        limits.append(limit.update(meta={**limit.meta, "value": value}))
    narrow = line("", "float32", "accent", field="float32")
    narrow.update(mode="lines+markers", marker={"size": 8, "color": COLORS["accent"]})
    wide = markers({"field": "float64"}, "float64", "line-1", "circle-open", size=10)
    wide.update(yaxis="y", marker={"line": {"width": 1.6}})
    lost = markers({"field": "lost"}, "not finite", "danger", "x")
    zero = markers({"field": "zero"}, "every number is 0", "muted", "triangle-left-open")
    for edge in (lost, zero):
        edge.update(xaxis="x2", yaxis="y")
    for trace in (narrow, wide, lost, zero):
        trace.update(hovertemplate="%{text}<extra></extra>")
    axes: dict[str, Any] = {
        "xaxis": {
            "title": {"text": "largest magnitude"},
            "type": "log",
            "exponentformat": "e",
            "zeroline": False,
            "nticks": 4,
            "tickangle": 0,
        },
        "yaxis": {"autorange": "reversed", "automargin": True, "zeroline": False, "tickmode": "array"},
        "xaxis2": {"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True},  # 1 is the chart's right edge
    }
    return figure([*limits, narrow, wide, lost, zero], "", **axes)


def counterfactuals() -> Figure:
    """A curve per counterfactual and one for the run, and a mark at the chart's upper edge where a curve ends with a loss that is
    not finite."""
    begin = line("", "start", "muted", field="start", dash="dot", width=1)
    begin.update(yaxis="y2", hovertemplate="%{text}<extra></extra>")
    recorded = line("", "the run", "muted", field="recorded", width=4)
    recorded.update(opacity=0.35, hovertemplate="the run, as recorded<br>step %{x}<br>%{y:.6g}<extra></extra>")
    curve = line("", "{label}", "line-0", field="curve", width=1.8)
    curve.update(hovertemplate="{label}<br>step %{x}<br>%{y:.6g}<extra></extra>")
    died = markers({"field": "died"}, "died", "danger", "x")
    return figure([begin, recorded, curve, died], "loss", y_type="log", showlegend=False)


CHARTS = (
    Chart(
        name="autopsy_modules",
        title="Largest magnitude in each module",
        meaning="Every module of the step's forward pass, and its loss, in the order of computation, in float32 and in float64.",
        scope="autopsy",
        build=modules,
        placed=True,
    ),
    Chart(
        name="autopsy_counterfactuals",
        title="The run with one thing changed",
        meaning="Training loss of the run (wide grey line) and of each change from where it starts; a cross marks a death.",
        scope="autopsy",
        build=counterfactuals,
        placed=True,
    ),
)
