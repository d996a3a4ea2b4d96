"""Detects that stable eigenvalues stay closer to the stability boundary than the configuration allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Threshold, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, steps_held

LASTING = 10  # steps that an eigenvalue must stay near; one that only passes by raises no alert


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    for layer in rows.layers:
        if layer.form is not None and (not layer.form.bounded or layer.form.map == "fixed"):
            continue
        if layer.distance.least >= watch.threshold:
            watch.memory.pop(layer.id, None)
        else:
            yield _condition(rows, layer, watch)


def _condition(rows: Rows, layer: LayerRows, watch: Watch) -> Condition:
    distance, threshold = layer.distance.values, watch.threshold
    near = (distance > 0) & (distance < threshold)  # at a distance of 0 or less, the eigenvalue is not stable
    if layer.form is not None and layer.form.rule == "bilinear" and layer.recorded is not None and near.any():
        # The bilinear rule maps every fast oscillation close to -1, even in S4's initial state. So count only eigenvalues that
        # are also near the boundary with zero-order hold.
        near &= replace(layer.form, rule="zoh").derive("boundary_distance", layer.recorded) < threshold

    before = watch.memory.get(layer.id, np.zeros(distance.shape[1], np.int64))
    lasts = steps_held(near, before)
    watch.memory[layer.id] = lasts[-1] if len(lasts) else before
    near = lasts >= LASTING

    def alert(row: int) -> Alert:
        nearest, count = int(np.argmin(np.where(near[row], distance[row], np.inf))), int(near[row].sum())
        what = (
            f"distance to the stability boundary is {distance[row, nearest]:.4g}, and has been below the threshold of "
            f"{threshold:g} for {LASTING} steps"
        )
        return eigenvalue_alert(
            KIND, rows, row, layer, layer.distance, nearest, chart="boundary_distance", count=count, what=what
        )

    return Condition(layer.id, near.any(axis=1), alert)


KIND = AlertKind(
    name="boundary_distance",
    severity="warning",
    meaning=f"1 - |eigenvalue| has been below `alerts.min_boundary_distance` for {LASTING} steps.",
    detect=detect,
    threshold=Threshold(
        name="min_boundary_distance",
        default=1e-4,
        gt=0,
        lt=1,
        description=f"Alert when 1 - |lambda_bar| stays below this for {LASTING} steps.",
    ),
)
