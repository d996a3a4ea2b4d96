"""Largest gradient over weight of several runs."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import overlay

CHART = Chart(
    name="compare_max_ratio",
    title="Largest gradient over weight",
    meaning="Largest |dL/dw| / |w| over all layers and eigenvalues of each run.",
    scope="compare",
    build=lambda: overlay("{run}:max_grad_over_weight", "max |grad| / |w|"),
)
