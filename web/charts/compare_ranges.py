"""From the smallest to the largest gradient over weight of each run, as bars."""

from __future__ import annotations

from typing import Any

from web.charts.parts import Chart, Figure, figure, go
from web.palette import COLORS


def build() -> Figure:
    def bar(low: str, high: str, width: float, opacity: float, **more: Any) -> Any:
        meta = {"field": "range", "low": low, "high": high}
        hover = "%{hovertext}<extra></extra>"
        return go.Bar(meta=meta, orientation="h", width=width, opacity=opacity, hovertemplate=hover, showlegend=False, **more)

    marker = {"symbol": "line-ns-open", "size": 16, "color": COLORS["ink"], "line": {"width": 2}}
    middle = go.Scatter(
        meta={"field": "median_of", "color": "ink"}, mode="markers", marker=marker, hoverinfo="skip", showlegend=False
    )
    axes: dict[str, Any] = {
        "xaxis": {"title": {"text": "|grad| / |w|"}, "type": "log", "exponentformat": "e"},
        "yaxis": {"autorange": "reversed", "automargin": True, "type": "category"},
    }
    bars = [bar("min", "max", 0.62, 0.35, textposition="none"), bar("q05", "q95", 0.62, 0.85, textposition="none")]
    return figure([*bars, middle], "", barmode="overlay", **axes)


CHART = Chart(
    name="compare_ranges",
    title="Ranges of gradient over weight",
    meaning="From the smallest to the largest |dL/dw| / |w| seen; the tick is the median, the label counts finite values.",
    scope="compare",
    build=build,
)
