"""Gradient over weight of the second weights of complex eigenvalues."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="grad_over_phase",
    title="Gradient over phase weight",
    meaning="|dL/dv| / |v| of the second weight of each complex eigenvalue.",
    scope="layer",
    build=lambda: eigenvalues("grad_over_phase", "|grad| / |v|", y_type="log"),
    caption="of the chosen layer",
    optional=True,
)
