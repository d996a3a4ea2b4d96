"""Eigenvalues of the recurrence, and the stability boundary."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="eigenvalue",
    title="Eigenvalues",
    meaning="Eigenvalues of the recurrence; beyond the boundary the state grows without limit.",
    scope="layer",
    build=lambda: eigenvalues("eigenvalue", "eigenvalue", boundary=1.0, unbounded="|λ| = 1, no boundary here"),
    alerts=("ssm/{layer}/eigenvalue", "ssm/{layer}/weight"),
    placed=True,
)
