"""GPU memory of the training process."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import scalar

CHART = Chart(
    name="gpu_memory",
    title="GPU memory",
    meaning="Largest GPU memory allocated so far.",
    scope="run",
    build=lambda: scalar("system/gpu_memory_gib", "GiB", from_zero=True),
    caption="largest allocated so far",
    optional=True,
)
