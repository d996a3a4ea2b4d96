"""Detects that a gradient scaler skips step after step, so that no weight changes and the run trains nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.rows import Rows, steps_held

IN_A_ROW = 10  # skipped steps; a scaler that looks for its first factor skips fewer
NEVER = 20  # skipped steps since the start, without a step that was not skipped, from which on the alert is critical
HELD, LAST = "held", "last"  # keys of the detector's memory


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    """HELD holds for the last row: the skipped steps in a row, the rows without a change of a weight, and the steps that were not
    skipped. LAST holds its weights."""
    if rows.skipped is None or not len(rows.loss):
        return
    held, unmoved, done = watch.memory.get(HELD, np.zeros(3))
    skipped = rows.was_skipped
    if not held and not skipped.any():
        watch.memory[HELD] = np.array([0.0, 0.0, done + len(skipped)])
        watch.memory.pop(LAST, None)
        return
    in_a_row = steps_held(skipped, held)
    still = steps_held(_equal_rows(rows, watch), unmoved)
    finished = done + np.cumsum(~skipped)
    watch.memory[HELD] = np.array([in_a_row[-1], still[-1], finished[-1]], np.float64)

    def alert(row: int) -> Alert:
        step, count = rows.step(row), int(in_a_row[row])
        what = f"the gradient scaler has skipped the update of {count} steps in a row, from step {step - count + 1:,} on"
        if still[row] >= count - 1:
            before = step - count
            what += f"; no recorded weight has changed since {f'step {before:,}' if finished[row] else 'the start'}"
        if rows.scale is not None and np.isfinite(rows.scale[row]):
            what += f"; its factor is {rows.scale[row]:.4g}"
        found = KIND.alert(step=step, message=what, series=names.SKIPPED, value=float(count))
        return replace(found, severity="critical") if critical[row] else found

    critical = (in_a_row >= NEVER) & (finished == 0)
    yield Condition(None, in_a_row >= IN_A_ROW, alert, critical)


def _equal_rows(rows: Rows, watch: Watch) -> np.ndarray:
    """For each row, whether every recorded weight equals its value in the row before, (rows,). False without weights."""
    weights = np.concatenate([rows.weight_norms, *(layer.weight.values for layer in rows.layers)], axis=1)
    before = watch.memory.get(LAST)
    watch.memory[LAST] = weights[-1].copy()
    first = weights[0] if before is None or before.shape != weights[0].shape else before
    whole = np.concatenate([first[None], weights])
    equal: np.ndarray = (whole[1:] == whole[:-1]).all(axis=1)
    return equal if weights.shape[1] else np.zeros(len(weights), bool)


KIND = AlertKind(
    name="steps_skipped",
    severity="warning",
    meaning=f"A gradient scaler has skipped the updates of {IN_A_ROW} steps in a row, because gradients were not finite. The "
    f"weights do not change meanwhile. Critical if no step of the run was done before and {NEVER} were skipped.",
    detect=detect,
)
