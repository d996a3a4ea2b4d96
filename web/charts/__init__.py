"""All charts: `run`, `layer`, `autopsy`, `several`, `theory` and `paper` list them; `shapes` and `parts` build them."""

from __future__ import annotations

from web.charts import autopsy, layer, paper, run, several, theory
from web.charts.parts import Chart

RUN_PAGE = ("run", "layer")

# in the order of GET /api/figures and of the run page: first the charts that a template places, then the small charts, then the
# charts of other pages
CHARTS: dict[str, Chart] = {
    chart.name: chart
    for chart in sorted(
        (*run.CHARTS, *layer.CHARTS, *autopsy.CHARTS, *several.CHARTS, *theory.CHARTS, *paper.CHARTS),
        key=lambda chart: (chart.scope not in RUN_PAGE, not chart.placed),
    )
}
