"""Trainable weights behind the eigenvalues."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="weight",
    title="Weights w",
    meaning="Trainable weight w behind each eigenvalue.",
    scope="layer",
    build=lambda: eigenvalues("weight", "w"),
    alerts=("ssm/{layer}/weight",),
    caption="of the chosen layer",
)
