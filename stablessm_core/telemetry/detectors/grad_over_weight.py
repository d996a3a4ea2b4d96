"""The gradient of an eigenvalue's weight is large beside the weight: the next step may throw it over the boundary."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from pydantic import Field

from stablessm_core.section import Section
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.place import at_eigenvalue
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    return (_condition(rows, layer, watch.threshold) for layer in rows.layers if not layer.ratio.largest <= watch.threshold)


def _condition(rows: Rows, layer: LayerRows, threshold: float) -> Condition:
    ratio = layer.ratio.values
    # a ratio that is not finite says nothing: the weight is exactly 0, or the gradient is not finite and has its own alert
    above = (ratio > threshold) & np.isfinite(ratio)

    def alert(row: int) -> Alert:
        worst, count = int(np.argmax(np.where(above[row], ratio[row], 0))), int(above[row].sum())
        what = f"gradient over weight above {threshold:g}:"
        return at_eigenvalue(KIND, rows, row, layer, layer.ratio, worst, chart="grad_over_weight", count=count, what=what)

    return Condition(layer.id, above.any(axis=1), alert)


class Settings(Section):
    max_grad_over_weight: float | None = Field(1e4, gt=0, description="Alert when |dL/dw| / |w| of an eigenvalue exceeds this.")


KIND = AlertKind(
    name="grad_over_weight",
    severity="warning",
    meaning="|dL/dw| / |w| of an eigenvalue has exceeded `alerts.max_grad_over_weight`.",
    detect=detect,
    settings=Settings,
)
