"""The registry of charts: Plotly figures without data, whose traces say in `meta` what belongs in them.

A chart is one file of `web/charts` and one line in CHARTS.

`meta` of a trace (read by `web.binding.bind` here and by `static/bind.js` in the browser, which do the same):
    series  name of the series; `{layer}`, `{run}` and `{map}` are filled in when bound
    field   last | min | max | median     numbers per step; min, max, median go over all eigenvalues of the series
            zero_weight                   markers of infinite ratios whose gradient, `unless`, is finite: the weight is 0
            nonfinite                     markers at the chart's edge where a value is NaN, +Inf or -Inf
            nonpositive                   markers at the lower edge where a logarithmic chart cannot show a value
            heat | heat_is                log10 of each eigenvalue at each step; cells that are `kind`, not a number
            heat_rows                     a mark at the right edge of each row that has such a cell
            alerts                        markers of the run's alerts of `severity` on this chart's series
            constant                      `value` over the steps of `series`
            range | median_of             compare: a bar from `low` to `high` of every item, a tick at its median
            path | end | then | now | boundary | lost    on a plane, see `web.planes`
    with    a second series, which goes with the first; `plane`: what the two are
    unless  the gradient behind a ratio: where that is finite and the ratio is not, the weight is 0 and nothing is lost
    top     the series whose largest eigenvalues are shown where none are chosen, if not the trace's own
    unbounded  the trace's name where |lambda_bar| = 1 is no boundary of stability
    each    eigenvalue | run | map        the trace is a template: one copy per item that is bound
    color   name of a colour in COLORS (the browser takes the CSS variable of that name, so that dark mode has its own)
"""

from __future__ import annotations

from functools import cache
from typing import Any

from web.charts import (
    accuracy,
    boundary_distance,
    boundary_distance_closest,
    compare_loss,
    compare_max_ratio,
    compare_ranges,
    dt,
    eigenvalue,
    gain,
    gates,
    gpu_memory,
    grad_norm,
    grad_over_phase,
    grad_over_weight,
    grad_over_weight_heatmap,
    gradient,
    half_plane,
    host_memory,
    loss,
    lr,
    overflow_budget,
    phase_weight,
    relative_step,
    sweep_final_loss,
    theory_gradient_over_weight,
    theory_gradient_scale,
    theory_map,
    theory_memory,
    theory_relative_slope,
    throughput,
    true_boundary_distance,
    true_eigenvalue,
    unit_disc,
    weight,
)
from web.charts.parts import Chart

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

# in the order of GET /api/figures and of the run page
CHARTS: dict[str, Chart] = {
    chart.name: chart
    for chart in (
        loss.CHART,
        grad_over_weight.CHART,
        grad_over_weight_heatmap.CHART,
        gradient.CHART,
        gates.CHART,
        unit_disc.CHART,
        half_plane.CHART,
        eigenvalue.CHART,
        boundary_distance.CHART,
        boundary_distance_closest.CHART,
        true_eigenvalue.CHART,
        true_boundary_distance.CHART,
        gain.CHART,
        relative_step.CHART,
        overflow_budget.CHART,
        accuracy.CHART,
        grad_norm.CHART,
        lr.CHART,
        throughput.CHART,
        host_memory.CHART,
        gpu_memory.CHART,
        weight.CHART,
        dt.CHART,
        phase_weight.CHART,
        grad_over_phase.CHART,
        compare_loss.CHART,
        compare_max_ratio.CHART,
        compare_ranges.CHART,
        sweep_final_loss.CHART,
        theory_map.CHART,
        theory_gradient_scale.CHART,
        theory_gradient_over_weight.CHART,
        theory_relative_slope.CHART,
        theory_memory.CHART,
    )
}


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
    if any("plane" in trace["meta"] for trace in figure["data"]):
        figure["layout"]["meta"]["plane"] = True  # its axes are no steps
    return figure


def small_charts() -> list[Chart]:
    """Those of a run page that no template places."""
    return [chart for chart in CHARTS.values() if chart.scope in ("run", "layer") and not chart.placed]


def series_of(chart: str) -> list[str]:
    """Names of the series that the chart shows."""
    return sorted({trace["meta"]["series"] for trace in spec(chart)["data"] if trace["meta"].get("series")})


def needed_by(chart: str) -> list[str]:
    """The same with those that only go with them."""
    beside = {trace["meta"][word] for trace in spec(chart)["data"] for word in ("with", "top", "unless") if word in trace["meta"]}
    return sorted({*series_of(chart), *beside})


def catalogue() -> dict[str, dict[str, Any]]:
    """All charts for GET /api/figures, JSON-ready: title, meaning, scope, the series it needs, the figure without data."""
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
