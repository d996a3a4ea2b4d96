"""Complex eigenvalues in continuous time on the half-plane."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import plane

CHART = Chart(
    name="half_plane",
    title="Eigenvalues in continuous time",
    meaning="lambda before the step size is applied, one of each conjugate pair: decay to the left of the dashed line, growth to "
    "its right; the higher, the faster it turns.",
    scope="layer",
    build=lambda: plane("half", "rate", "phase_weight", "Re λ", "|Im λ|", "Re λ = 0, no boundary here"),
    placed=True,
    optional=True,
)
