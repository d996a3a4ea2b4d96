"""Building blocks of charts: the figure with its axes, lines, bands, and markers for values that no axis can show."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from web.palette import COLORS

ZERO = "zero"  # the kind of a heat map's cells in which every value is exactly 0
ZERO_WEIGHT = "infinite: weight is 0"
go: Any = import_module("plotly.graph_objects")  # type checkers do not see the lazy exports of plotly
Figure = Any


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One chart. It marks the alerts about the series in `alerts`.

    Unless it is `placed`, a chart of a run or a layer appears in the run page's row of small charts, with `caption` beside its
    title.
    """

    name: str
    title: str
    meaning: str
    scope: str  # what the chart is drawn for: run, layer, metric, autopsy, compare, theory or paper
    build: Callable[[], Figure]
    alerts: tuple[str, ...] = ()
    caption: str = ""
    placed: bool = False  # a template places the chart explicitly
    optional: bool = False  # the chart is hidden on pages of runs that do not record its series


def figure(traces: list[Any], y_title: str, *, x_title: str = "step", y_type: str = "linear", **layout: Any) -> Figure:
    base: dict[str, Any] = {
        "margin": {"l": 56, "r": 12, "t": 8, "b": 40},
        "xaxis": {"title": {"text": x_title}, "zeroline": False},
        "yaxis": {
            "title": {"text": y_title, "standoff": 8},
            "type": y_type,
            "zeroline": False,
            "exponentformat": "e",
            "nticks": 4 if y_type == "log" else 6,  # with more ticks, the labels 7, 8 and 9 of a logarithmic axis would overlap
        },
        # markers for values that the axis cannot show use a separate axis: 0 is the chart's lower edge, 1 its upper edge
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hovermode": "closest",
        "uirevision": "keep",
    }
    return go.Figure(traces, {**base, **layout})


def line(series: str, name: str, color: str, *, field: str = "last", width: float = 1.6, dash: str = "solid", **more: Any) -> Any:
    meta = {"series": series, "field": field, "color": color}
    meta |= {word: more.pop(word) for word in ("each", "unless") if word in more}
    look = {"color": COLORS.get(color), "width": width, "dash": dash}
    return go.Scatter(meta=meta, name=name, mode="lines", line=look, connectgaps=False, **more)


def band(series: str, name: str, color: str, *, showlegend: bool = False) -> list[Any]:
    edge = {"mode": "lines", "line": {"width": 0}, "hoverinfo": "skip", "connectgaps": False}
    rgb = ",".join(str(int(COLORS[color][i : i + 2], 16)) for i in (1, 3, 5))
    low = go.Scatter(meta={"series": series, "field": "min", "color": color}, name=name, showlegend=False, **edge)
    high = go.Scatter(
        meta={"series": series, "field": "max", "color": color},
        name=name,
        fill="tonexty",
        showlegend=showlegend,
        fillcolor=f"rgba({rgb},0.16)",
        **edge,
    )
    return [low, high]


def markers(meta: dict[str, Any], name: str, color: str, symbol: str, **more: Any) -> Any:
    # `cliponaxis` would cut off half of a marker at the edge
    marker = {"symbol": symbol, "size": 9, "color": COLORS[color], **more}
    where = {"yaxis": "y2", "cliponaxis": False, "hovertemplate": "%{text}<extra></extra>"}
    return go.Scatter(meta={**meta, "color": color}, name=name, mode="markers", marker=marker, **where)


def notes(*series: str, log: bool = False, unless: str = "", lost: str = "NaN / Inf") -> list[Any]:
    """Markers for non-finite values, values below a logarithmic axis, and alerts.

    unless: the gradient from which a ratio is computed, see `web.figures`. lost: what a value means that is not finite.
    """
    known = {"unless": unless} if unless else {}
    found = [markers({"series": s, "field": "nonfinite", **known}, lost, "danger", "x") for s in series]
    if unless:
        found += [
            markers({"series": s, "field": "zero_weight", **known}, ZERO_WEIGHT, "muted", "triangle-up-open") for s in series
        ]
    if log:
        found += [markers({"series": s, "field": "nonpositive"}, "0 or less", "warning", "triangle-down-open") for s in series]
    for severity, color, symbol in (("critical", "danger", "diamond"), ("warning", "warning", "diamond-open")):
        trace = markers({"field": "alerts", "severity": severity}, f"{severity} alert", color, symbol)
        trace.update(mode="lines+markers", line={"color": COLORS[color], "width": 1, "dash": "dot"}, connectgaps=False)
        found.append(trace)
    return found
