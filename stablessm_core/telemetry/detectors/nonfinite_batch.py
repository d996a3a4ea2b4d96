"""The batch of a step holds a value that is not finite: the data are to blame, and nothing that the model made of them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.rows import Rows

WHICH = {1: ("batch.x", "the input, batch.x,"), 2: ("batch.y", "the target, batch.y,"), 3: ("batch.x", "input and target")}


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:  # noqa: ARG001
    flags = np.zeros(len(rows.loss)) if rows.batch is None else rows.batch

    def alert(row: int) -> Alert:
        step, flag = rows.first_step + row, int(flags[row])
        tensor, what = WHICH[flag]
        message = f"{what} of step {step} held NaN or an infinity before anything was computed"
        return KIND.alert(step=step, message=message, series=names.BATCH_NONFINITE, tensor=tensor, value=float(flag))

    yield Condition(None, flags > 0, alert)


KIND = AlertKind(
    name="nonfinite_batch",
    severity="critical",
    meaning="The input or the target of a training step holds NaN or an infinity; what the step made of it raises no alert.",
    detect=detect,
    nonfinite=True,
)
