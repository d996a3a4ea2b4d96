"""Each map's bound of the gradient."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import theory_curves

CHART = Chart(
    name="theory_gradient_scale",
    title="Gradient scale G_f",
    meaning="Bound of |dL/dw| up to a constant (theorem 3.6).",
    scope="theory",
    build=lambda: theory_curves("w", "G_f(w)", [-3, 4], y_type="log", points=True),
)
