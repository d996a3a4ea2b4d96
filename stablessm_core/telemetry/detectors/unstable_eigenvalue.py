"""An eigenvalue is on the stability boundary or beyond it, where the state grows without limit."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.place import at_eigenvalue
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:  # noqa: ARG001
    return (_condition(rows, layer) for layer in rows.layers)


def _condition(rows: Rows, layer: LayerRows) -> Condition:
    distance = layer.distance.values
    unstable = distance <= 0

    def alert(row: int) -> Alert:
        worst, count = int(np.nanargmin(distance[row])), int(unstable[row].sum())
        reached = distance[row, worst] == 0
        what = f"|lambda_bar| {'has reached 1 exactly in float32' if reached else '>= 1'}, distance to the boundary"
        return at_eigenvalue(KIND, rows, row, layer, layer.distance, worst, chart="boundary_distance", count=count, what=what)

    return Condition(layer.layer, unstable.any(axis=1), alert)


KIND = AlertKind(
    name="unstable_eigenvalue",
    severity="critical",
    meaning="An eigenvalue of the recurrence has an absolute value of 1 or more.",
    detect=detect,
)
