"""Eigenvalues of a layer's whole transition, computed at evaluations."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import measured

CHART = Chart(
    name="true_eigenvalue",
    title="Eigenvalues of the whole transition",
    meaning="|lambda_bar| of the transition that all weights together make, at evaluations: range, median and largest.",
    scope="layer",
    build=lambda: measured(("true_eigenvalue",), "|eigenvalue|", extreme="max", boundary="stability boundary"),
    placed=True,
    optional=True,
)
