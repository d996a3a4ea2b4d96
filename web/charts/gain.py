"""The gain that a layer guarantees, and the one it has."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import measured

CHART = Chart(
    name="gain",
    title="Gain from input to output",
    meaning="The gain in L2 that the layer's parameterisation guarantees (certified), and the largest over a grid of frequencies "
    "(measured), at evaluations: the second stays below the first.",
    scope="layer",
    build=lambda: measured(("certified_gain", "measured_gain"), "gain"),
    placed=True,
    optional=True,
)
