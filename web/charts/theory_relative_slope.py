"""Each map's slope relative to the distance to the boundary: how far a step of the weight moves the eigenvalue."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import theory_curves

CHART = Chart(
    name="theory_relative_slope",
    title="Relative slope R_f",
    meaning="Share of its distance to the boundary that an eigenvalue moves per unit of weight, against that distance.",
    scope="theory",
    build=lambda: theory_curves("distance to the boundary", "R_f", [-4, 4.5], x_type="log", y_type="log", points=True),
)
