"""Training losses of several runs."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import overlay

CHART = Chart(
    name="compare_loss",
    title="Loss",
    meaning="Training loss of each run.",
    scope="compare",
    build=lambda: overlay("{run}:train/loss", "loss"),
)
