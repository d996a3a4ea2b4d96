"""Speed of the training."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import scalar

CHART = Chart(
    name="throughput",
    title="Throughput",
    meaning="Sequence steps trained per second.",
    scope="run",
    build=lambda: scalar("train/tokens_per_second", "tokens / s", from_zero=True),
    caption="tokens per second",
)
