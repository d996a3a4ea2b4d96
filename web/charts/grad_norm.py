"""Norm of the whole gradient."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import scalar

CHART = Chart(
    name="grad_norm",
    title="Gradient norm",
    meaning="Global L2 norm of the gradient, before clipping.",
    scope="run",
    build=lambda: scalar("optim/grad_norm", "gradient norm", y_type="log"),
    alerts=("optim/grad_norm",),
    caption="before clipping",
)
