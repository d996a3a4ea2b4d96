"""Figures that several charts of a layer use: a line per eigenvalue, points on a plane, quantities measured at evaluations."""

from __future__ import annotations

from typing import Any

from web.charts.parts import Figure, band, figure, go, line, markers, notes
from web.palette import COLORS


def eigenvalues(
    kind: str,
    title: str,
    *,
    y_type: str = "linear",
    boundary: float | None = None,
    boundary_name: str = "stability boundary",
    legend: bool = False,
    unless: str = "",
    unbounded: str = "",
    lost: str = "NaN / Inf",
) -> Figure:
    series = "ssm/{layer}/" + kind
    known = {"unless": unless} if unless else {}
    traces = [
        *band(series, "range of all", "muted", showlegend=legend),
        line(series, "median", "muted", field="median", dash="dash", width=1.2, showlegend=legend),
    ]
    # the charts of a layer share their colours, so one legend is enough
    each = line(series, "λ {key}{note}", "line-0", each="eigenvalue", width=1.5, showlegend=legend, **known)
    each.update(hovertemplate="eigenvalue {key}<br>step %{x}<br>%{y:.6g}<extra></extra>")
    traces.append(each)
    if boundary is not None:
        edge = line(series, boundary_name, "danger", field="constant", dash="dash", width=1.4, hoverinfo="skip")
        edge.update(meta={**edge.meta, "value": boundary, **({"unbounded": unbounded} if unbounded else {})})
        traces.append(edge)
    return figure([*traces, *notes(series, log=True, unless=unless, lost=lost)], title, y_type=y_type)


def plane(which: str, series: str, partner: str, x_title: str, y_title: str, unbounded: str) -> Figure:
    """Eigenvalues above the real axis: the paths of some eigenvalues, the first and newest points of all eigenvalues.

    which: the plane, as in `web.planes`."""
    of = {"series": "ssm/{layer}/" + series, "with": "ssm/{layer}/" + partner, "plane": which, "top": "ssm/{layer}/eigenvalue"}

    def dots(field: str, name: str, color: str, size: int, symbol: str, **more: Any) -> Any:
        marker = {"symbol": symbol, "size": size, "color": COLORS[color], "line": {"width": 0}}
        hover = "eigenvalue %{customdata}<br>%{x:.6g} ± %{y:.6g} i<extra></extra>"
        return go.Scatter(
            meta={**of, "field": field, "color": color}, name=name, mode="markers", marker=marker, hovertemplate=hover, **more
        )

    edge = line(of["series"], "stability boundary", "danger", field="boundary", dash="dash", width=1.4, hoverinfo="skip")
    path = line(of["series"], "λ {key}{note}", "line-0", field="path", each="eigenvalue", width=1.3, showlegend=False)
    end = dots("end", "λ {key}{note}", "line-0", 8, "circle", showlegend=False)
    for trace in (edge, path, end):
        trace.update(meta={**of, **trace.meta})
    edge.update(meta={**edge.meta, "unbounded": unbounded})
    end.update(meta={**end.meta, "each": "eigenvalue"}, hovertemplate="eigenvalue {key}<br>%{x:.6g} ± %{y:.6g} i<extra></extra>")
    lost = markers({**of, "field": "lost"}, "NaN / Inf", "danger", "x")
    lost.update(xaxis="x2")
    traces = [edge, dots("then", "at first", "muted", 5, "circle-open", opacity=0.6), dots("now", "now", "muted", 4, "circle")]
    traces[1].marker.line.width = 1
    corner = {"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True}
    drawn = figure([*traces, path, end, lost], y_title, x_title=x_title, xaxis2=corner)
    if which == "disc":
        drawn.layout.yaxis.update(scaleanchor="x", scaleratio=1, constrain="domain")
        drawn.layout.xaxis.constrain = "domain"
    return drawn


def measured(kinds: tuple[str, ...], title: str, *, y_type: str = "linear", extreme: str = "", boundary: str = "") -> Figure:
    """Lines with markers for quantities measured at evaluations.

    extreme: "min" or "max" for a quantity with several numbers; the chart then shows their range, median and extreme."""
    traces = []
    for kind, color in zip(kinds, ("accent", "line-1"), strict=False):
        series = "ssm/{layer}/" + kind
        if extreme:
            traces += band(series, "range", "muted", showlegend=True)
            traces.append(line(series, "median", "muted", field="median", dash="dash", width=1.2))
        name = {"min": "smallest", "max": "largest", "": kind.partition("_")[0]}[extreme]
        found = line(series, name, color, field=extreme or "last")
        found.update(mode="lines+markers", marker={"size": 5, "color": COLORS[color]})
        traces.append(found)
    whole = ["ssm/{layer}/" + kind for kind in kinds]
    if boundary:
        edge = line(whole[0], boundary, "danger", field="constant", dash="dash", width=1.4, hoverinfo="skip")
        traces.append(edge.update(meta={**edge.meta, "value": 1.0}))
    return figure([*traces, *notes(*whole, log=True)], title, y_type=y_type)
