"""The charts of one layer: lines of eigenvalues, points on a plane, evaluation results. CHARTS has a row per chart."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from stablessm_core.telemetry.nonfinite import INFINITY, MINUS_INFINITY, NAN
from web.charts.parts import ZERO, Chart, Figure, band, figure, go, line, markers, notes
from web.charts.shapes import eigenvalues, measured, plane

LAYER = "ssm/{layer}/"
LOWEST_COLOR = "#440154"  # of the colour scale Viridis
SMALL = "of the chosen layer"  # caption of the charts in the row of small charts


def layer_chart(
    name: str, title: str, meaning: str, build: Callable[[], Figure], *,
    alerts: tuple[str, ...] = (), caption: str = "", optional: bool = False,
) -> Chart:  # fmt: skip
    """A chart that a template places, or a small chart if it has a caption. alerts: kinds of series whose alerts are marked."""
    own = tuple(LAYER + kind for kind in alerts)
    page: dict[str, Any] = {"caption": caption, "placed": not caption, "optional": optional}
    return Chart(name=name, title=title, meaning=meaning, scope="layer", build=build, alerts=own, **page)


def eigenvalue_chart(
    name: str, title: str, unit: str, meaning: str, *, log: bool = False, alerts: tuple[str, ...] = (), caption: str = "",
    optional: bool = False, **look: Any,
) -> Chart:  # fmt: skip
    """A chart of the series `name`: lines of some eigenvalues, and the range and median of all eigenvalues.

    look: options of `shapes.eigenvalues`."""
    build = partial(eigenvalues, name, unit, y_type="log" if log else "linear", **look)
    return layer_chart(name, title, meaning, build, alerts=alerts, caption=caption, optional=optional)


def gates() -> Figure:
    low, mean, high = (f"{LAYER}gate_{part}" for part in ("min", "mean", "max"))
    edges = [
        band(low, "range over batch and time", "muted")[0],
        band(high, "range over batch and time", "muted", showlegend=True)[1],
    ]
    middle = line(mean, "median of the means", "muted", field="median", dash="dash", width=1.2)
    each = line(mean, "λ {key}{note}", "line-0", each="eigenvalue", width=1.5, showlegend=False)
    ends = [line(s, "λ {key}, " + what, "line-0", each="eigenvalue", width=0.8, showlegend=False, opacity=0.5)
            for s, what in ((low, "smallest"), (high, "largest"))]  # fmt: skip
    for trace, what in zip([each, *ends], ("mean", "smallest", "largest"), strict=True):
        trace.update(hovertemplate=f"{what} gate of eigenvalue {{key}}<br>step %{{x}}<br>%{{y:.6g}}<extra></extra>")
    return figure([*edges, middle, *ends, each, *notes(low, mean, high, log=True)], "gate", y_type="log")


def overflow_budget() -> Figure:
    series = LAYER + "overflow_budget"
    traces = [*band(series, "budget range", "accent"), line(series, "budget", "accent")]
    for value, name, color in (
        (1.0, "the state overflows", "danger"),
        (0.5, "the loss overflows, unbounded activation", "warning"),
    ):
        limit = line(series, name, color, field="constant", dash="dash", width=1.4)
        limit.update(meta={**limit.meta, "value": value}, hovertemplate=f"{name} at {value:g}<extra></extra>")
        traces.append(limit)
    return figure([*traces, *notes(series)], "overflow budget", showlegend=False)


def heatmap() -> Figure:
    series, gradient = LAYER + "grad_over_weight", LAYER + "gradient"
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
    zero = go.Heatmap(
        meta={"series": series, "field": "heat_is", "kind": ZERO},
        name="exactly 0",
        colorscale=[[0, LOWEST_COLOR], [1, LOWEST_COLOR]],
        showscale=False,
        showlegend=False,
        hoverongaps=False,
        hovertemplate="step %{x}, eigenvalue %{y}<br>exactly 0<extra></extra>",
    )
    cells.append(zero)
    rows = markers(
        {"series": series, "field": "heat_rows", "unless": gradient}, "row with NaN / Inf", "danger", "triangle-left", size=8
    )
    rows.update(xaxis="x2", yaxis="y", showlegend=False)
    beside = {"overlaying": "x", "range": [0, 1], "visible": False, "fixedrange": True}  # 1 is the chart's right edge
    return figure([heat, *cells, rows, *notes(series, unless=gradient)], "eigenvalue", xaxis2=beside)


CHARTS = (
    # each row: name, title, unit, meaning
    eigenvalue_chart("grad_over_weight", "Gradient over weight", "|grad| / |w|",
        "|dL/dw| / |w| of the eigenvalues with the largest ratios, and the range over all eigenvalues.",
        log=True, alerts=("grad_over_weight",), legend=True, unless=LAYER + "gradient"),
    layer_chart("grad_over_weight_heatmap", "Gradient over weight, every eigenvalue",
        "Each row is an eigenvalue and each column a step; the colour is log10 of |dL/dw| / |w|.", heatmap,
        alerts=("grad_over_weight",)),
    eigenvalue_chart("gradient", "Gradient of the weights", "|grad|",
        "|dL/dw| itself, not divided by |w|, because weights of this layer may be exactly 0.", log=True, optional=True),
    layer_chart("gates", "Gates",
        "Gate or step size at each step: smallest, mean and largest value over batch and time. The line of an eigenvalue is "
        "the mean of its gate; the thin lines are the gate's smallest and largest value.", gates, optional=True),
    layer_chart("unit_disc", "Eigenvalues on the unit disc",
        "lambda_bar in the complex plane, one of each conjugate pair: its first point, its newest point and the path between "
        "them. If an eigenvalue is outside the circle, its state grows without limit.",
        partial(plane, "disc", "phase", "eigenvalue", "Re λ", "|Im λ|", "|λ| = 1, no boundary here"), optional=True),
    layer_chart("half_plane", "Eigenvalues in continuous time",
        "lambda before the step size is applied, one of each conjugate pair. A state decays to the left of the dashed line and "
        "grows to its right; the higher the point, the faster the state oscillates.",
        partial(plane, "half", "rate", "phase_weight", "Re λ", "|Im λ|", "Re λ = 0, no boundary here"), optional=True),
    eigenvalue_chart("eigenvalue", "Eigenvalues", "eigenvalue",
        "Eigenvalues of the recurrence. If an eigenvalue is beyond the boundary, its state grows without limit.",
        alerts=("eigenvalue", "weight"), boundary=1.0, unbounded="|λ| = 1, no boundary here"),
    eigenvalue_chart("boundary_distance", "Distance to the stability boundary", "1 - |eigenvalue|",
        "1 - |eigenvalue|. 0 is on the boundary and a negative value is unstable; both are marked at the lower edge.",
        log=True, alerts=("boundary_distance",)),
    eigenvalue_chart("boundary_distance_closest", "Closest approach to the boundary", "1 - |eigenvalue|",
        "Smallest 1 - |eigenvalue| of each step, over batch and time, or over the channels that share an eigenvalue.", log=True,
        alerts=("boundary_distance_closest",), optional=True),
    layer_chart("true_eigenvalue", "Eigenvalues of the whole transition",
        "|lambda_bar| of the whole transition matrix, computed at evaluations: range, median and largest value.",
        partial(measured, ("true_eigenvalue",), "|eigenvalue|", extreme="max", boundary="stability boundary"), optional=True),
    layer_chart("true_boundary_distance", "Distance of the whole transition",
        "1 - |lambda_bar| of the whole transition matrix, computed at evaluations: range, median and smallest value.",
        partial(measured, ("true_boundary_distance",), "1 - |eigenvalue|", y_type="log", extreme="min"), optional=True),
    layer_chart("gain", "Gain from input to output",
        "The bound on the L2 gain that the layer's parameterisation guarantees (certified), and the largest gain over a grid "
        "of frequencies (measured), both at evaluations. The measured gain stays below the certified gain.",
        partial(measured, ("certified_gain", "measured_gain"), "gain"), optional=True),
    eigenvalue_chart("relative_step", "Relative step", "relative step",
        "Change of the eigenvalue in one step, divided by its distance to the boundary. Below 1 (dashed) it cannot cross it.",
        log=True, alerts=("relative_step",), optional=True, boundary=1.0, boundary_name="may cross",
        lost="outside, or not finite"),
    layer_chart("overflow_budget", "Overflow budget",
        "Sequence length × ln(largest |λ|) / 88.72. At 1 the state overflows float32. At 1/2 the loss overflows if the "
        "activation is unbounded (both dashed). The value is negative while all eigenvalues are inside the boundary.",
        overflow_budget, alerts=("overflow_budget",), optional=True),
    eigenvalue_chart("weight", "Weights w", "w", "Trainable weight w of each eigenvalue.", alerts=("weight",), caption=SMALL),
    eigenvalue_chart("dt", "Step sizes", "dt", "Step size of each eigenvalue, in continuous time.",
        log=True, caption=SMALL, optional=True),
    eigenvalue_chart("phase_weight", "Phase weights v", "v",
        "Second trainable weight of each complex eigenvalue, for its angle or imaginary part.", caption=SMALL, optional=True),
    eigenvalue_chart("grad_over_phase", "Gradient over phase weight", "|grad| / |v|",
        "|dL/dv| / |v| of the second weight v of each complex eigenvalue.", log=True, caption=SMALL, optional=True),
)  # fmt: skip
