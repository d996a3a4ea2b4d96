"""How far each step moves the eigenvalues, in units of their distance to the stability boundary."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="relative_step",
    title="Relative step",
    meaning="Change of the eigenvalue by one step over its distance to the boundary: below 1 (dashed) nothing crosses.",
    scope="layer",
    build=lambda: eigenvalues("relative_step", "relative step", y_type="log", boundary=1.0, boundary_name="may cross"),
    alerts=("ssm/{layer}/relative_step",),
    placed=True,
    optional=True,
)
