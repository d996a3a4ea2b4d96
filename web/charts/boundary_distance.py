"""Distance of the eigenvalues to the stability boundary."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="boundary_distance",
    title="Distance to the stability boundary",
    meaning="1 - |eigenvalue|; 0 is on the boundary, below it is unstable; both are drawn at the lower edge.",
    scope="layer",
    build=lambda: eigenvalues("boundary_distance", "1 - |eigenvalue|", y_type="log"),
    alerts=("ssm/{layer}/boundary_distance",),
    placed=True,
)
