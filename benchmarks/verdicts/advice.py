"""Follows each change that a verdict offers, and sees whether the run lives."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.verdicts.audit.recorded_facts import state_after
from benchmarks.verdicts.recorded import Config, Recorded, trained
from stablessm_core.spec.errors import ConfigError
from stablessm_core.spec.forking import ForkError
from stablessm_core.verdict import Run, Source, trouble_start

KINDS = {  # a setting of a change -> the kind of the change in the table; the first that the change contains decides
    "model.reparameterization.time": "discrete time",
    "model.reparameterization.name": "another map",
    "optimizer.name": "another optimizer",
    "optimizer.grad_clip": "clip gradients",
    "optimizer.weight_decay": "lower weight decay",
    "optimizer.lr": "lower rate",
    "optimizer.recurrent_lr": "lower recurrent rate",
    "train.precision": "another precision",
    "train.on_bad_batch": "leave out bad batches",
    "telemetry.every": "record every step (a test)",
}


def kind_of(change: Mapping[str, Any]) -> str:
    if change == {"optimizer.recurrent_lr": 0}:
        return "frozen eigenvalues (a test)"
    return next((name for setting, name in KINDS.items() if setting in change), ", ".join(sorted(change)))


def follow(recorded: Recorded, run: Run, source: Source, verdict: Mapping[str, Any]) -> list[dict[str, Any]]:
    """[{kind, change, cause, from_step, lives, step}]: each change that the verdict on a dead run offers, followed to the end of
    the run, in a fork from the last step before the trouble; from the seed if no fork is possible."""
    trouble = trouble_start(run, source)
    before = 0 if trouble is None else trouble.step - 1
    followed = []
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = _checkpoint(recorded.config, before, Path(folder)) if before else None
        for offered in verdict["try"]:
            outcome, from_step = _followed(recorded.config, offered["change"], checkpoint, before)
            followed.append(
                {
                    "kind": kind_of(offered["change"]),
                    "change": offered["change"],
                    "cause": verdict["cause"],
                    "from_step": from_step,
                    "lives": outcome.lives,
                    "step": outcome.outcome.step,
                }
            )
    return followed


def _checkpoint(config: Config, step: int, folder: Path) -> Path:
    """A checkpoint after `step` steps of the run. The number of steps stays as it is, because a schedule depends on it."""
    return state_after(config, step, folder)


def _followed(config: Config, change: Mapping[str, Any], checkpoint: Path | None, step: int) -> tuple[Recorded, int]:
    if checkpoint is not None:
        try:
            return trained(config, change, fork=checkpoint), step
        except (ForkError, ConfigError):
            pass
    return trained(config, change), 0
