"""Shapes that several charts have: one number per step, one line per eigenvalue, one per run, one per map."""

from __future__ import annotations

from web.charts.parts import Figure, band, figure, line, markers, notes
from web.palette import COLORS


def scalar(
    series: str, title: str, *, y_type: str = "linear", from_zero: bool = False, y_range: list[float] | None = None
) -> Figure:
    name = series.split("/")[1]
    traces = [*band(series, f"{name} range", "accent"), line(series, name, "accent"), *notes(series, log=True)]
    drawn = figure(traces, title, y_type=y_type, showlegend=False)
    if from_zero:
        drawn.layout.yaxis.rangemode = "tozero"
    drawn.layout.yaxis.range = y_range
    return drawn


def eigenvalues(
    kind: str,
    title: str,
    *,
    y_type: str = "linear",
    boundary: float | None = None,
    boundary_name: str = "stability boundary",
    legend: bool = False,
) -> Figure:
    series = "ssm/{layer}/" + kind
    traces = [
        *band(series, "range of all", "muted", showlegend=legend),
        line(series, "median", "muted", field="median", dash="dash", width=1.2, showlegend=legend),
    ]
    # the charts of a layer share their colours: one legend is enough
    each = line(series, "λ {key}{note}", "line-0", each="eigenvalue", width=1.5, showlegend=legend)
    each.update(hovertemplate="eigenvalue {key}<br>step %{x}<br>%{y:.6g}<extra></extra>")
    traces.append(each)
    if boundary is not None:
        edge = line(series, boundary_name, "danger", field="constant", dash="dash", width=1.4, hoverinfo="skip")
        edge.update(meta={**edge.meta, "value": boundary})
        traces.append(edge)
    return figure([*traces, *notes(series, log=True)], title, y_type=y_type)


def overlay(series: str, title: str) -> Figure:
    curve = line(series, "{label}", "accent", each="run", width=1.5)
    curve.update(hovertemplate="{label}<br>step %{x}<br>%{y:.6g}<extra></extra>")
    marks = markers({"series": series, "field": "nonfinite", "each": "run"}, "{label}: NaN / Inf", "danger", "x")
    marks.update(showlegend=False)
    return figure([curve, marks], title, y_type="log")


def theory_curves(
    x_title: str, y_title: str, y_range: list[float], *, x_type: str = "linear", y_type: str = "linear", points: bool = False
) -> Figure:
    """One line per map; with `points` also a run's weights, where it has any."""
    curve = line("theory/{map}", "{label}", "accent", each="map", width=1.8)
    curve.update(hovertemplate="{label}<br>%{x:.4g}<br>%{y:.4g}<extra></extra>")
    traces = [curve]
    if points:
        weights = line("theory/weights", "the run's weights", "ink")
        look = {"size": 7, "symbol": "circle-open", "color": COLORS["ink"], "line": {"width": 1.5}}
        weights.update(mode="markers", marker=look, hovertemplate="%{x:.6g}<br>%{y:.6g}<extra>weight</extra>")
        traces.append(weights)
    # curves of maps have one legend, beside the charts
    legend = {} if not points else {"showlegend": False}
    drawn = figure(traces, y_title, x_title=x_title, y_type=y_type, **legend).update_xaxes(type=x_type, exponentformat="e")
    drawn.layout.yaxis.range = y_range
    return drawn
