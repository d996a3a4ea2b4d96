"""Detects an eigenvalue beyond the stability boundary, whose state grows along the sequence. An eigenvalue exactly on the
boundary raises no alert."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.next_step import before_first, can_cross, weight_steps
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows
from stablessm_core.telemetry.stability import overflow_budget, steps_left


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    if len(rows.loss):
        for layer in rows.layers:
            if layer.form is None or can_cross(layer.form):
                first = before_first(layer, watch)
                if not layer.distance.least >= 0:
                    yield _condition(rows, layer, watch, first)


def _condition(rows: Rows, layer: LayerRows, watch: Watch, first: np.ndarray) -> Condition:
    distance = layer.distance.values
    unstable = distance < 0  # an eigenvalue on the boundary (possible with relu) is not unstable

    def alert(row: int) -> Alert:
        worst, count = int(np.nanargmin(distance[row])), int(unstable[row].sum())
        steps = None if watch.setup is None else weight_steps(rows, layer, watch.setup, first)
        more = _what_it_means(layer, row, worst, watch, None if steps is None else float(steps[row, worst]))
        what = f"outside the stability boundary: |lambda_bar| is {_size(distance[row, worst])}, and stable values are at most 1"
        return eigenvalue_alert(
            KIND, rows, row, layer, layer.distance, worst, chart="boundary_distance", count=count, what=what, more=more
        )

    return Condition(layer.id, unstable.any(axis=1), alert)


def _size(distance: float) -> str:
    """|lambda_bar| with so many digits that it differs from 1."""
    return f"1 + {-distance:.3g}" if -1e-3 < distance < 0 else f"{1 - distance:.4g}"


def _what_it_means(layer: LayerRows, row: int, column: int, watch: Watch, step: float | None) -> str:
    """Text with the overflow budget, its limit, and a lower bound on the number of steps until the states overflow."""
    if watch.setup is None:
        return ""
    length, limit = watch.setup.length, watch.setup.limits[layer.layer]
    budget = float(overflow_budget(length, layer.distance.values[row, column]))
    text = f"; its overflow budget is {budget:.3g} of {limit:g} at length {length}"
    if step is None or not step > 0 or layer.form is None or layer.recorded is None:
        return text
    recorded = {kind: values[row, column] for kind, values in layer.recorded.items()}
    left = float(steps_left(layer.form, recorded, step, length, limit))
    return text + (f"; with weight steps of {step:.3g}, it overflows after {int(left):,} steps or later" if left < 1e9 else "")


KIND = AlertKind(
    name="unstable_eigenvalue",
    severity="warning",
    meaning="An eigenvalue of the recurrence has an absolute value above 1. The states overflow when its overflow budget "
    "reaches the limit.",
    detect=detect,
)
