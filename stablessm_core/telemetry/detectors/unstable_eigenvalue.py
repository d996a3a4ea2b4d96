"""Detects an eigenvalue beyond the stability boundary, whose state grows along the sequence. An eigenvalue exactly on the
boundary raises no alert."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.budget import at_which_gate, bound_text, budget_text, size_of_eigenvalue
from stablessm_core.telemetry.detectors.next_step import (
    before_first,
    may_be_outside,
    step_growth,
    trains_step_sizes,
    weight_steps,
)
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, Values
from stablessm_core.telemetry.stability import MOST_STEPS, steps_left


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    if len(rows.loss):
        for layer in rows.layers:
            if may_be_outside(layer):
                first = before_first(layer, watch)
                if not layer.distance.least >= 0:
                    yield _condition(rows, layer, watch, first)


def _condition(rows: Rows, layer: LayerRows, watch: Watch, first: np.ndarray) -> Condition:
    distance = layer.overflow_distance
    unstable = distance < 0  # an eigenvalue on the boundary (possible with relu) is not unstable
    channels = layer.form is not None and layer.form.channels

    def alert(row: int) -> Alert:
        worst, count = int(np.nanargmin(distance[row])), int(unstable[row].sum())
        size = size_of_eigenvalue(distance[row, worst])
        what = f"outside the stability boundary: |lambda_bar| is {size}{' at the largest step size' * channels}, above 1"
        return eigenvalue_alert(
            KIND,
            rows,
            row,
            layer,
            Values(distance, layer.distance.at),
            worst,
            chart="boundary_distance_closest" if channels else "boundary_distance",
            count=count,
            what=what,
            more=_what_it_means(rows, layer, row, worst, watch, first),
        )

    return Condition(layer.id, unstable.any(axis=1), alert)


def _what_it_means(rows: Rows, layer: LayerRows, row: int, column: int, watch: Watch, first: np.ndarray) -> str:
    """Text with the overflow budget, its limit, and how many steps lead to the limit."""
    if watch.setup is None:
        return ""
    length, limit = watch.setup.length, watch.setup.limits[layer.layer]
    budget = budget_text(length, layer.overflow_distance[row, column]) + bound_text(layer, row, column, length)
    text = f"; its overflow budget{at_which_gate(layer)} is {budget} of {limit:g} at length {length}"
    steps = weight_steps(rows, layer, watch.setup, first)
    if steps is None or layer.form is None or layer.recorded is None or not steps[row, column] > 0:
        return text
    recorded = {kind: values[row, column] for kind, values in layer.recorded.items()}
    growth = float(np.broadcast_to(step_growth(rows, layer, watch.setup), steps.shape)[row, column])
    left = float(steps_left(layer.form, recorded, steps[row, column], length, limit, growth))
    if not 0 < left < MOST_STEPS:
        return text
    count, rest = math.ceil(left), ""
    if growth > 1:
        rest = f" and multiplies its step size by {growth:.4g}"
    elif trains_step_sizes(layer.form) or layer.form.gate:
        rest = f" and its {'step size' if trains_step_sizes(layer.form) else 'gate'} does not change"
    return (
        f"{text}; if every step moves its weight outward by {steps[row, column]:.3g}{rest}, it reaches this limit after about "
        f"{count:,} step{'s' * (count > 1)}"
    )


KIND = AlertKind(
    name="unstable_eigenvalue",
    severity="warning",
    meaning="An eigenvalue of the recurrence has an absolute value above 1. The states overflow when its overflow budget "
    "reaches the limit.",
    detect=detect,
)
