"""Memory of the training process."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import scalar

CHART = Chart(
    name="host_memory",
    title="Memory",
    meaning="Resident memory of the training process.",
    scope="run",
    build=lambda: scalar("system/host_memory_gib", "GiB", from_zero=True),
    caption="of the training process",
    optional=True,
)
