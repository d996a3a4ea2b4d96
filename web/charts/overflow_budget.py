"""How much of float32's range the largest eigenvalue uses up over one sequence."""

from __future__ import annotations

from web.charts.parts import Chart, Figure, band, figure, line, notes


def build() -> Figure:
    series = "ssm/{layer}/overflow_budget"
    traces = [*band(series, "budget range", "accent"), line(series, "budget", "accent")]
    for value, name, color in (
        (1.0, "the state overflows", "danger"),
        (0.5, "the loss overflows, unbounded activation", "warning"),
    ):
        limit = line(series, name, color, field="constant", dash="dash", width=1.4)
        limit.update(meta={**limit.meta, "value": value}, hovertemplate=f"{name} at {value:g}<extra></extra>")
        traces.append(limit)
    return figure([*traces, *notes(series)], "overflow budget", showlegend=False)


CHART = Chart(
    name="overflow_budget",
    title="Overflow budget",
    meaning="length × ln|λ|max / 88.72: at 1 the state overflows float32, at 1/2 the loss behind an unbounded activation "
    "(dashed); negative while all eigenvalues are inside the boundary.",
    scope="layer",
    build=build,
    alerts=("ssm/{layer}/overflow_budget",),
    placed=True,
    optional=True,
)
