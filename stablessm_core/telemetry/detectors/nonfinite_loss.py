"""The training loss is not a number or infinite."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.rows import Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:  # noqa: ARG001
    def alert(row: int) -> Alert:
        value = float(rows.loss[row])
        step = rows.first_step + row
        return KIND.alert(step=step, message=f"loss is {value}", series=names.TRAIN_LOSS, tensor="loss", value=value)

    yield Condition(None, ~np.isfinite(rows.loss) & rows.finite_batch, alert)


KIND = AlertKind(
    name="nonfinite_loss",
    severity="critical",
    meaning="The training loss is NaN or infinite.",
    detect=detect,
    nonfinite=True,
)
