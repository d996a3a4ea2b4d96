"""Step sizes of the eigenvalues."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="dt",
    title="Step sizes",
    meaning="Step size of each eigenvalue, in continuous time.",
    scope="layer",
    build=lambda: eigenvalues("dt", "dt", y_type="log"),
    caption="of the chosen layer",
    optional=True,
)
