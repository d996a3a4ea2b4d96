"""Detects a gradient that is large relative to an eigenvalue's weight, so that the next step may cross the boundary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Threshold, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    return (_condition(rows, layer, watch.threshold) for layer in rows.layers if not layer.ratio.largest <= watch.threshold)


def _condition(rows: Rows, layer: LayerRows, threshold: float) -> Condition:
    ratio = layer.ratio.values
    # skip non-finite ratios: either the weight is exactly 0, or the gradient is not finite, which another alert reports
    above = (ratio > threshold) & np.isfinite(ratio)
    typical = _typical_weight(layer)
    if typical is not None:
        above &= ratio * (np.abs(layer.weight.values) / typical) > threshold

    def alert(row: int) -> Alert:
        worst, count = int(np.argmax(np.where(above[row], ratio[row], 0))), int(above[row].sum())
        what = f"gradient is {ratio[row, worst]:,.4g} times the weight, above the threshold of {threshold:,.6g} times"
        return eigenvalue_alert(KIND, rows, row, layer, layer.ratio, worst, chart="grad_over_weight", count=count, what=what)

    return Condition(layer.id, above.any(axis=1), alert)


def _typical_weight(layer: LayerRows) -> np.ndarray | None:
    """The median |w| of each row, (rows, 1). A ratio to a single weight near 0 is large in any healthy run. None if the weights
    and the ratios of a wide layer belong to different eigenvalues."""
    if layer.ratio.at is not None or layer.weight.values.shape != layer.ratio.values.shape:
        return None
    return np.asarray(np.median(np.abs(layer.weight.values), axis=1, keepdims=True))


KIND = AlertKind(
    name="grad_over_weight",
    severity="warning",
    meaning="|dL/dw| / |w| of an eigenvalue has exceeded `alerts.max_grad_over_weight`, and so has |dL/dw| divided by the "
    "median |w| of the layer.",
    detect=detect,
    threshold=Threshold(
        name="max_grad_over_weight", default=1e4, gt=0, description="Alert when |dL/dw| / |w| of an eigenvalue exceeds this."
    ),
)
