"""Detects that training explodes: the loss is many times its smallest value so far. The recurrence may not be the cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Threshold, Watch
from stablessm_core.telemetry.detectors.rows import Rows
from stablessm_core.telemetry.stability import loss_over_best

WHOLE = "0"  # key under which the detector's memory keeps the smallest loss so far


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:
    best = float(watch.memory[WHOLE][0]) if WHOLE in watch.memory else np.inf
    ratio, best = loss_over_best(rows.loss, best)
    watch.memory[WHOLE] = np.array([best])
    with np.errstate(invalid="ignore"):
        holds = (ratio >= watch.threshold) & np.isfinite(rows.loss)

    def alert(row: int) -> Alert:
        times, loss = float(ratio[row]), float(rows.loss[row])
        message = f"loss is {loss:.6g}, {times:.3g} times its smallest so far"
        found = KIND.alert(step=rows.first_step + row, message=message, series=names.TRAIN_LOSS, tensor="loss", value=times)
        # with AdamW, most runs whose loss explodes in this way remain finite
        return found if watch.setup is None or watch.setup.optimizer == "sgd" else replace(found, severity="warning")

    yield Condition(None, holds, alert)


KIND = AlertKind(
    name="training_explodes",
    severity="critical",
    meaning="The loss is at least `alerts.max_loss_over_best` times its smallest value so far. The alert is critical with sgd. "
    "It is a warning with adamw, where most such runs remain finite.",
    detect=detect,
    threshold=Threshold(
        name="max_loss_over_best",
        default=30.0,
        gt=1,
        description="Alert when the loss is this many times its smallest value so far.",
    ),
    comes_before=True,
)
