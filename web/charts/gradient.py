"""The gradient of each eigenvalue's weight itself, where weights may be exactly 0."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="gradient",
    title="Gradient of the weights",
    meaning="|dL/dw| itself, not over |w|: weights may be exactly 0 here.",
    scope="layer",
    build=lambda: eigenvalues("gradient", "|grad|", y_type="log"),
    placed=True,
    optional=True,
)
