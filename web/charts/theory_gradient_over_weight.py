"""Each map's bound of gradient over weight against the distance to the stability boundary."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import theory_curves

CHART = Chart(
    name="theory_gradient_over_weight",
    title="Gradient scale over weight",
    meaning="G_f / |w| against the distance of the eigenvalue to the boundary: flat is stable.",
    scope="theory",
    build=lambda: theory_curves("distance to the boundary", "G_f / |w|", [-4, 9], x_type="log", y_type="log", points=True),
)
