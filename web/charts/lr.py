"""Learning rate of each step."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import scalar

CHART = Chart(
    name="lr",
    title="Learning rate",
    meaning="Learning rate of each step.",
    scope="run",
    build=lambda: scalar("optim/lr", "learning rate", from_zero=True),
)
