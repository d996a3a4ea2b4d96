"""The training as a whole explodes: its loss is many times the best so far. The recurrence need not be the cause."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from pydantic import Field

from stablessm_core.section import Section
from stablessm_core.stability import loss_over_best
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.rows import Rows

WHOLE = "0"  # key of the memory: the smallest loss so far


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
        # under AdamW most such runs stay finite
        return found if watch.setup is None or watch.setup.optimizer == "sgd" else replace(found, severity="warning")

    yield Condition(None, holds, alert)


class Settings(Section):
    max_loss_over_best: float | None = Field(
        30.0, gt=1, description="Alert when the loss is this many times the smallest so far."
    )


KIND = AlertKind(
    name="training_explodes",
    severity="critical",
    meaning="The loss is `alerts.max_loss_over_best` times its smallest so far. Critical under sgd; under adamw, where most such "
    "runs stay finite, a warning.",
    detect=detect,
    settings=Settings,
    comes_before=True,
)
