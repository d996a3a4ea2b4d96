"""Detects a stable eigenvalue that is closer to the stability boundary than the configuration allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Threshold, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    bounded = (layer for layer in rows.layers if layer.form is None or (layer.form.bounded and layer.form.map != "fixed"))
    return (_condition(rows, layer, watch.threshold) for layer in bounded if not layer.distance.least >= watch.threshold)


def _condition(rows: Rows, layer: LayerRows, threshold: float) -> Condition:
    distance = layer.distance.values
    near = (distance > 0) & (distance < threshold)  # at a distance of 0 or less, the eigenvalue is not stable
    if layer.form is not None and layer.form.rule == "bilinear" and layer.recorded is not None and near.any():
        # The bilinear rule maps every fast oscillation close to -1, even in S4's initial state. So count only eigenvalues that
        # are also near the boundary with zero-order hold.
        near &= replace(layer.form, rule="zoh").derive("boundary_distance", layer.recorded) < threshold

    def alert(row: int) -> Alert:
        nearest, count = int(np.argmin(np.where(near[row], distance[row], np.inf))), int(near[row].sum())
        what = f"distance to the boundary below {threshold:g}:"
        return eigenvalue_alert(
            KIND, rows, row, layer, layer.distance, nearest, chart="boundary_distance", count=count, what=what
        )

    return Condition(layer.id, near.any(axis=1), alert)


KIND = AlertKind(
    name="boundary_distance",
    severity="warning",
    meaning="1 - |eigenvalue| has fallen below `alerts.min_boundary_distance`.",
    detect=detect,
    threshold=Threshold(
        name="min_boundary_distance", default=1e-4, gt=0, lt=1, description="Alert when 1 - |lambda_bar| falls below this."
    ),
)
