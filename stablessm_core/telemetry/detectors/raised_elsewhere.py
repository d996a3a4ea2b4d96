"""Alerts that no detector finds in recorded rows and no setting changes: the trainer, worker or server raises them."""

from __future__ import annotations

from stablessm_core.telemetry.detectors.alert import AlertKind

ROLLED_BACK = AlertKind(
    name="rolled_back",
    severity="warning",
    meaning="Numbers were lost, or a warning said that they soon would be (`train.on_warning`), and training went back to a "
    "checkpoint; the message says which and why.",
)
LR_LOWERED = AlertKind(
    name="lr_lowered",
    severity="warning",
    meaning="A warning said that numbers would soon be lost, and the learning rate is lower from there on (`train.on_warning`).",
)
STOPPED_EARLY = AlertKind(
    name="stopped_early",
    severity="warning",
    meaning="A warning said that numbers would soon be lost, and the run ended there (`train.on_warning`).",
)
WORKER_LOST = AlertKind(
    name="worker_lost",
    severity="warning",
    meaning="The worker of the run has not been heard of for the length of its lease; another one may take the run.",
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
    meaning="The database is away and the worker's spool is full; training waits until its numbers can be stored.",
    of_attempt=True,
)
