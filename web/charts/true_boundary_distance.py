"""Distance to the stability boundary of the eigenvalues of a layer's whole transition, computed at evaluations."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import measured

CHART = Chart(
    name="true_boundary_distance",
    title="Distance of the whole transition",
    meaning="1 - |lambda_bar| of the transition that all weights together make, at evaluations: range, median and smallest.",
    scope="layer",
    build=lambda: measured(("true_boundary_distance",), "1 - |eigenvalue|", y_type="log", extreme="min"),
    placed=True,
    optional=True,
)
