"""What exponentials can remember of a polynomial memory, for one eigenvalue and for the best sum of a run's."""

from __future__ import annotations

from web.charts.parts import Chart
from web.charts.shapes import theory_curves

CHART = Chart(
    name="theory_memory",
    title="Memory function",
    meaning="How much an input still counts t steps later.",
    scope="theory",
    build=lambda: theory_curves("steps since the input", "share that is left", [-6, 0.3], x_type="log", y_type="log"),
)
