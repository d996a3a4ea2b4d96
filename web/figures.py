"""Charts as Plotly figures without data. Only the `meta` of each trace states what the trace shows.

Each chart is a row of a table in `web/charts`.

`meta` of a trace (read by `web.binding.bind` on the server and by `static/chart/bind.js` in the browser):
    series name of the series; `{layer}`, `{run}` and `{map}` are replaced when data is bound
    field   last | min | max | median     numbers per step; min, max, median are taken over all eigenvalues of the series
            zero_weight                   markers of infinite ratios whose gradient, `unless`, is finite: the weight is 0
            nonfinite                     markers at the chart's edge where a value is NaN, +Inf or -Inf
            nonpositive                   markers at the lower edge for values that a logarithmic chart cannot show
            heat | heat_is                log10 of each eigenvalue at each step; cells of this non-finite `kind`, or of exactly 0
            heat_rows                     a mark at the right edge of each row that has a non-finite cell
            alerts                        markers for the run's alerts of this `severity` about the chart's series
            constant                      `value` over the steps of `series`
            range | median_of             compare: for each item a bar from `low` to `high`, and a tick at the median
            zero_of                       markers at the left edge for medians of exactly 0
            limit | float32 | float64 | lost | zero    the modules of an autopsy, see `web.charts.autopsy`
            start | curve | died          the counterfactuals of an autopsy
            path | end | then | now | boundary | lost    on a plane, see `web.planes`
    with    the second series of a trace on a plane; `plane` names the plane, which defines what the two series are
    unless  the gradient from which a ratio is computed; if the ratio is not finite but the gradient is, the weight is 0
    optional  true: without data, the legend does not name the trace
    top     the series that ranks the eigenvalues: the largest are shown by default; without `top`, the trace's own series
    unbounded  the trace's name if |lambda_bar| = 1 is not a boundary of stability
    each    eigenvalue | run | map        the trace is a template, copied once per bound item
    color   name of a colour in COLORS (the browser uses the CSS variable of that name, so that dark mode has its own colours)
"""

from __future__ import annotations

from functools import cache
from typing import Any

from web.charts import CHARTS, RUN_PAGE
from web.charts.parts import Chart

# Plotly must never offer to send data to an external server
CONFIG: dict[str, Any] = {
    "displaylogo": False,
    "showSendToCloud": False,
    "plotlyServerURL": "",
    "responsive": True,
    "doubleClick": "reset",
    # the button Export saves the server's picture; Plotly's own picture of the page would differ from it
    "modeBarButtonsToRemove": ["select2d", "lasso2d", "autoScale2d", "toImage"],
}


def spec(chart: str) -> dict[str, Any]:
    """Figure of the chart without data: {"data": traces with meta, "layout"}. Raises ValueError for an unknown chart."""
    if chart not in CHARTS:
        raise ValueError(f"chart is {chart!r}; allowed: {sorted(CHARTS)}")
    return _spec(chart)


@cache
def _spec(chart: str) -> dict[str, Any]:
    figure: dict[str, Any] = CHARTS[chart].build().to_plotly_json()
    figure["layout"].pop("template", None)
    figure["layout"]["meta"] = {"chart": chart, "alerts": list(CHARTS[chart].alerts)}
    if any("plane" in trace["meta"] for trace in figure["data"]):
        figure["layout"]["meta"]["plane"] = True  # the horizontal axis of a plane does not show steps
    return figure


def small_charts() -> list[Chart]:
    """The charts in the run page's row of small charts: all charts of runs and layers that no template places."""
    return [chart for chart in CHARTS.values() if chart.scope in RUN_PAGE and not chart.placed]


def series_of(chart: str) -> list[str]:
    """Names of the series that the chart shows."""
    return sorted({trace["meta"]["series"] for trace in spec(chart)["data"] if trace["meta"].get("series")})


def needed_by(chart: str) -> list[str]:
    """Names of the series that the chart needs: the shown series, their partners, and the series that select the lines."""
    beside = {trace["meta"][word] for trace in spec(chart)["data"] for word in ("with", "top", "unless") if word in trace["meta"]}
    return sorted({*series_of(chart), *beside})


def catalogue() -> dict[str, dict[str, Any]]:
    """All charts for GET /api/figures, JSON-ready: title, meaning, scope, needed series, the figure without data."""
    return {
        name: {
            "title": chart.title,
            "meaning": chart.meaning,
            "scope": chart.scope,
            "series": needed_by(name),
            "figure": spec(name),
            "config": CONFIG,
        }
        for name, chart in CHARTS.items()
    }
