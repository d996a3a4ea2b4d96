"""Reports a batch with NaN or infinities that the run did not train on, because `train.on_bad_batch` is "skip"."""

from __future__ import annotations

from collections.abc import Iterator

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.nonfinite import BATCH_PARTS, bad_batch
from stablessm_core.telemetry.detectors.rows import Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:  # noqa: ARG001
    def alert(row: int) -> Alert:
        assert rows.batch is not None
        step, flag = rows.step(row), int(rows.batch[row])
        tensor, what = BATCH_PARTS[flag]
        message = f"{what} of step {step} held NaN or an infinity; this step changed no weight (train.on_bad_batch)"
        return KIND.alert(step=step, message=message, series=names.BATCH_NONFINITE, tensor=tensor, value=float(flag))

    yield Condition(None, bad_batch(rows), alert)


KIND = AlertKind(
    name="batch_skipped",
    severity="warning",
    meaning="The input or the target of a training step holds NaN or an infinity, and the step changed no weight "
    '(`train.on_bad_batch` is "skip"). Further such batches within 100 steps raise no new alert.',
    detect=detect,
)
