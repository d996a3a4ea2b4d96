"""Each map: the eigenvalue as a function of the trainable weight."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import theory_curves

CHART = Chart(
    name="theory_map",
    title="Map",
    meaning="Eigenvalue f(w) of the trainable weight w.",
    scope="theory",
    build=lambda: theory_curves("w", "f(w)", [-3, 3], points=True),
)
