"""Accuracy on the evaluation split."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import scalar

CHART = Chart(
    name="accuracy",
    title="Evaluation accuracy",
    meaning="Share of right answers on the evaluation split.",
    scope="run",
    build=lambda: scalar("eval/accuracy", "accuracy", y_range=[0, 1.02]),
    optional=True,
)
