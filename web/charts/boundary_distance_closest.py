"""How close to the stability boundary each eigenvalue came within a step, where it varies with the input."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="boundary_distance_closest",
    title="Closest approach to the boundary",
    meaning="1 - |eigenvalue| where the gate was smallest in the step, over batch and time.",
    scope="layer",
    build=lambda: eigenvalues("boundary_distance_closest", "1 - |eigenvalue|", y_type="log"),
    placed=True,
    optional=True,
)
