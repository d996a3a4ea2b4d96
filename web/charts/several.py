"""The charts of several runs: lines of a comparison, ranges by map, final losses of a sweep."""

from __future__ import annotations

from functools import partial
from typing import Any

from web.charts.parts import Chart, Figure, figure, go, line, markers
from web.palette import COLORS


def overlay(series: str, title: str) -> Figure:
    curve = line(series, "{label}", "accent", each="run", width=1.5)
    curve.update(hovertemplate="{label}<br>step %{x}<br>%{y:.6g}<extra></extra>")
    marks = markers({"series": series, "field": "nonfinite", "each": "run"}, "{label}: NaN / Inf", "danger", "x")
    marks.update(showlegend=False)
    return figure([curve, marks], title, y_type="log")


def ranges(x_title: str = "|grad| / |w|") -> Figure:
    """One bar per map, from the smallest to the largest value, by default of gradient over weight."""

    def bar(low: str, high: str, width: float, opacity: float, **more: Any) -> Any:
        meta = {"field": "range", "low": low, "high": high}
        hover = "%{hovertext}<extra></extra>"
        return go.Bar(meta=meta, orientation="h", width=width, opacity=opacity, hovertemplate=hover, showlegend=False, **more)

    marker = {"symbol": "line-ns-open", "size": 16, "color": COLORS["ink"], "line": {"width": 2}}
    middle = go.Scatter(
        meta={"field": "median_of", "color": "ink"}, mode="markers", marker=marker, hoverinfo="skip", showlegend=False
    )
    zero = markers({"field": "zero_of"}, "median 0", "warning", "triangle-left-open", size=11)
    zero.update(xaxis="x2", yaxis="y", showlegend=False)
    axes: dict[str, Any] = {
        "xaxis": {"title": {"text": x_title}, "type": "log", "exponentformat": "e"},
        "xaxis2": {"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True},  # 0 is the chart's left edge
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
    }
    bars = [bar("min", "max", 0.62, 0.35, textposition="none"), bar("q05", "q95", 0.62, 0.85, textposition="none")]
    return figure([*bars, middle, zero], "", barmode="overlay", **axes)


def final_loss() -> Figure:
    curve = line("sweep/{map}", "{label}", "accent", each="map", width=1.8)
    curve.update(mode="lines+markers", marker={"size": 7}, hovertemplate="{label}<br>lr %{x}<br>loss %{y:.4g}<extra></extra>")
    lost = markers({"series": "sweep/{map}", "field": "nonfinite", "each": "map"}, "{label}: not finite", "danger", "x")
    lost.update(showlegend=False)
    drawn = figure([curve, lost], "final loss", x_title="learning rate", y_type="log")
    return drawn.update_xaxes(type="log", exponentformat="e")


def chart(name: str, title: str, meaning: str, build: Any) -> Chart:
    return Chart(name=name, title=title, meaning=meaning, scope="compare", build=build)


CHARTS = (
    chart("compare_loss", "Loss", "Training loss of each run.", partial(overlay, "{run}:train/loss", "loss")),
    chart("compare_max_ratio", "Largest gradient over weight",
        "Largest |dL/dw| / |w| over all layers and eigenvalues of each run.",
        partial(overlay, "{run}:max_grad_over_weight", "max |grad| / |w|")),
    chart("compare_ranges", "Ranges of gradient over weight",
        "Each bar extends from the smallest to the largest |dL/dw| / |w|; the tick is the median; a triangle at the left "
        "edge marks a median of exactly 0. The hover text counts finite values.", ranges),
    chart("sweep_final_loss", "Final loss by learning rate", "One line per map; lost runs are marked at the edge.", final_loss),
)  # fmt: skip
