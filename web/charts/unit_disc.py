"""Complex eigenvalues of the recurrence on the unit disc."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import plane

CHART = Chart(
    name="unit_disc",
    title="Eigenvalues on the unit disc",
    meaning="lambda_bar with its angle, one of each conjugate pair: where it began, where it is, the way between; beyond the "
    "circle a state grows without limit.",
    scope="layer",
    build=lambda: plane("disc", "phase", "eigenvalue", "Re λ", "|Im λ|", "|λ| = 1, no boundary here"),
    placed=True,
    optional=True,
)
