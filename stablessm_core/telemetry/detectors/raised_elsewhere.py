"""Alerts that no detector finds in recorded rows: the trainer, the worker or the server raises them."""

from __future__ import annotations

from stablessm_core.telemetry.detectors.alert import AlertKind, Threshold

NONFINITE_EVALUATION = AlertKind(
    name="nonfinite_evaluation",
    severity="critical",
    meaning="An evaluation loss is NaN or infinite. Training goes on. If it is the last evaluation, the run counts as lost.",
)
NO_PROGRESS = AlertKind(
    name="no_progress",
    severity="warning",
    meaning="No training step has ended for `alerts.no_progress_seconds`.",
    threshold=Threshold(
        name="no_progress_seconds", default=300.0, ge=1, le=864_000, description="Alert when no step ends for this long."
    ),
    of_attempt=True,
)
ROLLED_BACK = AlertKind(
    name="rolled_back",
    severity="warning",
    meaning="A number became NaN or infinite, or a warning predicted this (`train.on_warning`), and training returned to a "
    "checkpoint. The message names the checkpoint and the reason.",
)
LR_LOWERED = AlertKind(
    name="lr_lowered",
    severity="warning",
    meaning="A warning predicted that a number would soon become NaN or infinite, and the learning rate was lowered "
    "(`train.on_warning`).",
)
STOPPED_EARLY = AlertKind(
    name="stopped_early",
    severity="warning",
    meaning="A warning predicted that a number would soon become NaN or infinite, and the run ended (`train.on_warning`).",
)
WORKER_LOST = AlertKind(
    name="worker_lost",
    severity="warning",
    meaning="The run's worker has sent no heartbeat for the length of its lease; another worker may take the run.",
    of_attempt=True,
)
TRAINER_CRASHED = AlertKind(
    name="trainer_crashed",
    severity="warning",
    meaning="The training process ended without a result: an error, a signal or too little memory.",
    of_attempt=True,
)
SPOOL_FULL = AlertKind(
    name="spool_full",
    severity="critical",
    meaning="The database is unavailable and the worker's spool is full; training waits until its numbers can be stored.",
    of_attempt=True,
)
WORKER_UNFIT = AlertKind(
    name="worker_unfit",
    severity="critical",
    meaning="The run's worker could not train it because of its machine: a full disk, no memory, a broken GPU or missing data. "
    "The message names the cause.",
    of_attempt=True,
)
RULE = AlertKind(
    name="rule",
    severity="warning",
    meaning="A scalar has met the condition of one of your rules (`alerts.rules`) for as many steps as the rule names.",
)

REPORTED = AlertKind(
    name="reported",
    severity="warning",
    meaning="The program that trains the run raised this alert itself (`run.alert`).",
)
RECORDING_CHANGED = AlertKind(
    name="recording_changed",
    severity="warning",
    meaning="A loop that `stablessm.watch` records has replaced a recorded parameter, or another optimizer trains the model, or "
    "no more rows are recorded. The message says what is recorded since this step.",
)

KINDS = (
    NONFINITE_EVALUATION,
    NO_PROGRESS,
    ROLLED_BACK,
    LR_LOWERED,
    STOPPED_EARLY,
    WORKER_LOST,
    TRAINER_CRASHED,
    SPOOL_FULL,
    WORKER_UNFIT,
    RULE,
    REPORTED,
    RECORDING_CHANGED,
)
