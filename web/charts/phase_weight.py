"""Second weights of complex eigenvalues."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="phase_weight",
    title="Phase weights v",
    meaning="Second trainable weight of each complex eigenvalue: of its angle or its imaginary part.",
    scope="layer",
    build=lambda: eigenvalues("phase_weight", "v"),
    caption="of the chosen layer",
    optional=True,
)
