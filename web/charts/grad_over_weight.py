"""Gradient over weight of the largest eigenvalues, and the range over all."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import eigenvalues

CHART = Chart(
    name="grad_over_weight",
    title="Gradient over weight",
    meaning="|dL/dw| / |w| of the eigenvalues with the largest ratio, and the range over all of them.",
    scope="layer",
    build=lambda: eigenvalues("grad_over_weight", "|grad| / |w|", y_type="log", legend=True, unless="ssm/{layer}/gradient"),
    alerts=("ssm/{layer}/grad_over_weight",),
    placed=True,
)
