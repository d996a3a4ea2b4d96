"""Detects eigenvalues that have stopped learning: their gradient has been exactly 0 for DEAD_STEPS steps."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch, eigenvalue_alert
from stablessm_core.telemetry.detectors.rows import LayerRows, Rows, steps_held

DEAD_STEPS = 100


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    for layer in rows.layers:
        if layer.ratio.at is not None or not layer.ratio.values.shape[1]:
            continue  # only extremes are recorded, which cannot show zeros, or the layer has no trained eigenvalues
        if layer.ratio.least > 0:
            watch.memory[layer.id] = np.zeros(layer.ratio.values.shape[1], np.int64)
            continue
        dead = _steps_without_gradient(layer, watch.memory) >= DEAD_STEPS
        yield _condition(rows, layer, dead)


def _condition(rows: Rows, layer: LayerRows, dead: np.ndarray) -> Condition:
    def alert(row: int) -> Alert:
        columns = np.flatnonzero(dead[row])
        first, count = int(columns[0]), len(columns)
        what = f"gradient has been exactly 0 for {DEAD_STEPS} steps; the weight is {layer.weight.values[row, first]:.4g}"
        return eigenvalue_alert(KIND, rows, row, layer, layer.weight, first, chart="grad_over_weight", count=count, what=what)

    return Condition(layer.id, dead.any(axis=1), alert)


def _steps_without_gradient(layer: LayerRows, memory: dict[str, np.ndarray]) -> np.ndarray:
    """The number of steps since the gradient was last nonzero, (rows, eigenvalues). `memory` keeps the last row."""
    zero = layer.ratio.values == 0
    width = zero.shape[1]
    before = memory.get(layer.id, np.zeros(width, np.int64))
    if not zero.any():
        memory[layer.id] = np.zeros(width, np.int64)
        return np.zeros(zero.shape, np.int64)
    steps = steps_held(zero, before)
    memory[layer.id] = steps[-1]
    return steps


KIND = AlertKind(
    name="dead_eigenvalues",
    severity="warning",
    meaning=f"The gradient of an eigenvalue's weight has been exactly 0 for {DEAD_STEPS} steps.",
    detect=detect,
)
