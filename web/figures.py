"""Every chart of the product, once: Plotly figures without data, whose traces say in `meta` what belongs in them.

`meta` of a trace (read by `web.binding.bind` here and by `static/bind.js` in the browser, which do the same):
    series  name of the series; `{layer}`, `{run}` and `{map}` are filled in when bound
    field   last | min | max | median     numbers per step; min, max, median go over all eigenvalues of the series
            nonfinite                     markers at the chart's edge where a value is NaN, +Inf or -Inf
            nonpositive                   markers at the lower edge where a logarithmic chart cannot show a value
            heat | heat_is                log10 of each eigenvalue at each step; cells that are `kind`, not a number
            alerts                        markers of the run's alerts of `severity` on this chart's series
            constant                      `value` over the steps of `series`
            range | median_of             compare: a bar from `low` to `high` of every item, a tick at its median
    each    eigenvalue | run | map        the trace is a template: one copy per item that is bound
    color   name of a colour in COLORS (the browser takes the CSS variable of that name, so that dark mode has its own)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from web.binding import MAX_LINES, bind
from web.palette import COLORS, MAP_DASHES

__all__ = ["CHARTS", "COLORS", "CONFIG", "MAP_DASHES", "MAX_LINES", "Chart", "bind", "catalogue", "spec"]

go: Any = import_module("plotly.graph_objects")  # its lazy exports are hidden from type checkers
Figure = Any

# Never offer to send data to anyone else's server
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "responsive": True,
    "doubleClick": "reset",
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d"],
    "toImageButtonOptions": {"format": "svg"},
}


@dataclass(frozen=True)
class Chart:
    """One chart: `scope` says what it is drawn for, `alerts` on which series an alert is shown here."""

    title: str
    meaning: str
    scope: str  # run, layer, compare, theory
    build: Callable[[], Figure]
    alerts: tuple[str, ...] = ()


def spec(chart: str) -> dict[str, Any]:
    """Figure of the chart without data: {"data": traces with meta, "layout"}. Raises ValueError for an unknown chart."""
    if chart not in CHARTS:
        raise ValueError(f"chart is {chart!r}; allowed are {sorted(CHARTS)}")
    return _spec(chart)


@cache
def _spec(chart: str) -> dict[str, Any]:
    figure: dict[str, Any] = CHARTS[chart].build().to_plotly_json()
    figure["layout"].pop("template", None)
    figure["layout"]["meta"] = {"chart": chart, "alerts": list(CHARTS[chart].alerts)}
    return figure


def catalogue() -> dict[str, dict[str, Any]]:
    """All charts for GET /api/figures, JSON-ready: title, meaning, scope, the series it needs, the figure without data."""
    return {
        name: {
            "title": chart.title,
            "meaning": chart.meaning,
            "scope": chart.scope,
            "series": sorted({t["meta"]["series"] for t in spec(name)["data"] if t["meta"].get("series")}),
            "figure": spec(name),
            "config": CONFIG,
        }
        for name, chart in CHARTS.items()
    }


def _figure(traces: list[Any], y_title: str, *, x_title: str = "step", y_type: str = "linear", **layout: Any) -> Figure:
    base: dict[str, Any] = {
        "margin": {"l": 56, "r": 12, "t": 8, "b": 40},
        "xaxis": {"title": {"text": x_title}, "zeroline": False},
        "yaxis": {
            "title": {"text": y_title, "standoff": 8},
            "type": y_type,
            "zeroline": False,
            "exponentformat": "e",
            "nticks": 6,
        },
        # the markers of what no axis can show live on an axis of their own: 0 is the lower edge, 1 the upper
        "yaxis2": {"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True},
        "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0, "traceorder": "normal"},
        "hovermode": "closest",
        "uirevision": "keep",
    }
    return go.Figure(traces, {**base, **layout})


def _line(
    series: str, name: str, color: str, *, field: str = "last", width: float = 1.6, dash: str = "solid", **more: Any
) -> Any:
    each = {"each": more.pop("each")} if "each" in more else {}
    meta = {"series": series, "field": field, "color": color, **each}
    line = {"color": COLORS.get(color), "width": width, "dash": dash}
    return go.Scatter(meta=meta, name=name, mode="lines", line=line, connectgaps=False, **more)


def _band(series: str, name: str, color: str, *, showlegend: bool = False) -> list[Any]:
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


def _markers(meta: dict[str, Any], name: str, color: str, symbol: str, **more: Any) -> Any:
    # `cliponaxis` off: half of a marker at the edge would be cut
    marker = {"symbol": symbol, "size": 9, "color": COLORS[color], **more}
    where = {"yaxis": "y2", "cliponaxis": False, "hovertemplate": "%{text}<extra></extra>"}
    return go.Scatter(meta={**meta, "color": color}, name=name, mode="markers", marker=marker, **where)


def _notes(*series: str, log: bool = False) -> list[Any]:
    """What must not be missed: non-finite values, values below a logarithmic axis, alerts."""
    notes = [_markers({"series": s, "field": "nonfinite"}, "NaN / Inf", "danger", "x") for s in series]
    if log:
        notes += [_markers({"series": s, "field": "nonpositive"}, "0 or less", "warning", "triangle-down-open") for s in series]
    for severity, color in (("critical", "danger"), ("warning", "warning")):
        trace = _markers({"field": "alerts", "severity": severity}, f"{severity} alert", color, "diamond")
        trace.update(mode="lines+markers", line={"color": COLORS[color], "width": 1, "dash": "dot"}, connectgaps=False)
        notes.append(trace)
    return notes


def _scalar(
    series: str, title: str, *, y_type: str = "linear", from_zero: bool = False, y_range: list[float] | None = None
) -> Figure:
    name = series.split("/")[1]
    traces = [*_band(series, f"{name} range", "accent"), _line(series, name, "accent"), *_notes(series, log=y_type == "log")]
    figure = _figure(traces, title, y_type=y_type, showlegend=False)
    if from_zero:
        figure.layout.yaxis.rangemode = "tozero"
    figure.layout.yaxis.range = y_range
    return figure


def _loss() -> Figure:
    train, evaluation = "train/loss", "eval/loss"
    ev = _line(evaluation, "eval", "line-1")
    ev.update(mode="lines+markers", marker={"size": 5})
    traces = [*_band(train, "train range", "accent"), _line(train, "train", "accent"), ev, *_notes(train, evaluation, log=True)]
    return _figure(traces, "loss", y_type="log")


def _eigenvalues(kind: str, title: str, *, y_type: str = "linear", boundary: float | None = None, legend: bool = False) -> Figure:
    series = "ssm/{layer}/" + kind
    traces = [
        *_band(series, "range of all", "muted", showlegend=legend),
        _line(series, "median", "muted", field="median", dash="dash", width=1.2, showlegend=legend),
    ]
    # the charts of a layer share their colours: one legend is enough
    each = _line(series, "λ {key}", "line-0", each="eigenvalue", width=1.5, showlegend=legend)
    each.update(hovertemplate="eigenvalue {key}<br>step %{x}<br>%{y:.6g}<extra></extra>")
    traces.append(each)
    if boundary is not None:
        edge = _line(series, "stability boundary", "danger", field="constant", dash="dash", width=1.4, hoverinfo="skip")
        edge.update(meta={**edge.meta, "value": boundary})
        traces.append(edge)
    return _figure([*traces, *_notes(series, log=y_type == "log")], title, y_type=y_type)


def _heatmap() -> Figure:
    series = "ssm/{layer}/grad_over_weight"
    heat = go.Heatmap(
        meta={"series": series, "field": "heat"},
        name="log10 |grad| / |w|",
        colorscale="Viridis",
        hoverongaps=False,
        colorbar={"title": {"text": "|grad|/|w|", "side": "right"}, "tickprefix": "1e", "thickness": 12, "outlinewidth": 0},
        hovertemplate="step %{x}, eigenvalue %{y}<br>log10 %{z:.3f}<extra></extra>",
    )
    special = {"NaN": "#ff2fb3", "Infinity": "#ff3b30", "-Infinity": "#00c8ff"}
    cells = [
        go.Heatmap(
            meta={"series": series, "field": "heat_is", "kind": kind},
            name={"NaN": "NaN", "Infinity": "+Inf", "-Infinity": "-Inf"}[kind],
            colorscale=[[0, color], [1, color]],
            showscale=False,
            showlegend=True,
            hoverongaps=False,
            hovertemplate="step %{x}, eigenvalue %{y}<br>" + kind + "<extra></extra>",
        )
        for kind, color in special.items()
    ]
    return _figure([heat, *cells, *_notes()], "eigenvalue")


def _overlay(series: str, title: str) -> Figure:
    line = _line(series, "{label}", "accent", each="run", width=1.5)
    line.update(hovertemplate="{label}<br>step %{x}<br>%{y:.6g}<extra></extra>")
    marks = _markers({"series": series, "field": "nonfinite", "each": "run"}, "{label}: NaN / Inf", "danger", "x")
    marks.update(showlegend=False)
    return _figure([line, marks], title, y_type="log")


def _ranges() -> Figure:
    def bar(low: str, high: str, width: float, opacity: float, **more: Any) -> Any:
        meta = {"field": "range", "low": low, "high": high}
        hover = "%{hovertext}<extra></extra>"
        return go.Bar(meta=meta, orientation="h", width=width, opacity=opacity, hovertemplate=hover, showlegend=False, **more)

    marker = {"symbol": "line-ns-open", "size": 16, "color": COLORS["ink"], "line": {"width": 2}}
    middle = go.Scatter(
        meta={"field": "median_of", "color": "ink"}, mode="markers", marker=marker, hoverinfo="skip", showlegend=False
    )
    axes: dict[str, Any] = {
        "xaxis": {"title": {"text": "|grad| / |w| over all steps and eigenvalues"}, "type": "log", "exponentformat": "e"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
    }
    bars = [bar("min", "max", 0.62, 0.35, textposition="none"), bar("q05", "q95", 0.62, 0.85, textposition="none")]
    return _figure([*bars, middle], "", barmode="overlay", **axes)


def _final_loss() -> Figure:
    line = _line("sweep/{map}", "{label}", "accent", each="map", width=1.8)
    line.update(mode="lines+markers", marker={"size": 7}, hovertemplate="{label}<br>lr %{x}<br>loss %{y:.4g}<extra></extra>")
    lost = _markers({"series": "sweep/{map}", "field": "nonfinite", "each": "map"}, "{label}: not finite", "danger", "x")
    lost.update(showlegend=False)
    figure = _figure([line, lost], "final loss", x_title="learning rate", y_type="log")
    return figure.update_xaxes(type="log", exponentformat="e")


def _theory(x_title: str, y_title: str, y_range: list[float], *, x_type: str = "linear", y_type: str = "linear") -> Figure:
    line = _line("theory/{map}", "{label}", "accent", each="map", width=1.8)
    line.update(hovertemplate="{label}<br>%{x:.4g}<br>%{y:.4g}<extra></extra>")
    figure = _figure([line], y_title, x_title=x_title, y_type=y_type).update_xaxes(type=x_type, exponentformat="e")
    figure.layout.yaxis.range = y_range
    return figure


_RATIO = "ssm/{layer}/grad_over_weight"
_EIGENVALUE, _DISTANCE, _WEIGHT = "ssm/{layer}/eigenvalue", "ssm/{layer}/boundary_distance", "ssm/{layer}/weight"

CHARTS: dict[str, Chart] = {
    "loss": Chart(
        "Loss", "Training loss of each step and mean loss on the evaluation split.", "run", _loss, ("train/loss", "eval/loss", "")
    ),
    "grad_over_weight": Chart(
        "Gradient over weight",
        "|dL/dw| / |w| of the eigenvalues with the largest ratio, and the range over all of them.",
        "layer",
        lambda: _eigenvalues("grad_over_weight", "|grad| / |w|", y_type="log", legend=True),
        (_RATIO,),
    ),
    "grad_over_weight_heatmap": Chart(
        "Gradient over weight, every eigenvalue",
        "One row per eigenvalue, one column per step; colour is log10 of |dL/dw| / |w|.",
        "layer",
        _heatmap,
        (_RATIO,),
    ),
    "eigenvalue": Chart(
        "Eigenvalues",
        "Eigenvalues of the recurrence; beyond the boundary the state grows without limit.",
        "layer",
        lambda: _eigenvalues("eigenvalue", "eigenvalue", boundary=1.0),
        (_EIGENVALUE, _WEIGHT),
    ),
    "boundary_distance": Chart(
        "Distance to the stability boundary",
        "1 - |eigenvalue|; what is at or below zero is unstable and drawn at the lower edge.",
        "layer",
        lambda: _eigenvalues("boundary_distance", "1 - |eigenvalue|", y_type="log"),
        (_DISTANCE,),
    ),
    "weight": Chart(
        "Weights", "Trainable weight w behind each eigenvalue.", "layer", lambda: _eigenvalues("weight", "w"), (_WEIGHT,)
    ),
    "accuracy": Chart(
        "Evaluation accuracy",
        "Share of right answers on the evaluation split.",
        "run",
        lambda: _scalar("eval/accuracy", "accuracy", y_range=[0, 1.02]),
    ),
    "grad_norm": Chart(
        "Gradient norm",
        "Global L2 norm of the gradient, before clipping.",
        "run",
        lambda: _scalar("optim/grad_norm", "gradient norm", y_type="log"),
        ("optim/grad_norm",),
    ),
    "lr": Chart(
        "Learning rate", "Learning rate of each step.", "run", lambda: _scalar("optim/lr", "learning rate", from_zero=True)
    ),
    "throughput": Chart(
        "Throughput",
        "Sequence steps trained per second.",
        "run",
        lambda: _scalar("train/tokens_per_second", "tokens / s", from_zero=True),
    ),
    "compare_loss": Chart("Loss", "Training loss of each run.", "compare", lambda: _overlay("{run}:train/loss", "loss")),
    "compare_max_ratio": Chart(
        "Largest gradient over weight",
        "Largest |dL/dw| / |w| over all layers and eigenvalues of each run.",
        "compare",
        lambda: _overlay("{run}:max_grad_over_weight", "max |grad| / |w|"),
    ),
    "compare_ranges": Chart(
        "Ranges of gradient over weight",
        "From the smallest to the largest |dL/dw| / |w| seen; the tick is the median, the label counts finite values.",
        "compare",
        _ranges,
    ),
    "sweep_final_loss": Chart("Final loss by learning rate", "One line per map; lost runs at the edge.", "compare", _final_loss),
    "theory_map": Chart("Map", "Eigenvalue f(w) of the trainable weight w.", "theory", lambda: _theory("w", "f(w)", [-3, 3])),
    "theory_gradient_scale": Chart(
        "Gradient scale G_f",
        "Bound of |dL/dw| up to a constant (theorem 3.6).",
        "theory",
        lambda: _theory("w", "G_f(w)", [-3, 4], y_type="log"),
    ),
    "theory_gradient_over_weight": Chart(
        "Gradient scale over weight",
        "G_f / |w| against the distance of the eigenvalue to the boundary: flat is stable.",
        "theory",
        lambda: _theory("distance to the boundary", "G_f / |w|", [-4, 9], x_type="log", y_type="log"),
    ),
}
