"""The checkpoints of a run: write a checkpoint, resume a run from its own checkpoint, or start it from that of another run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ValidationError

from stablessm_core.spec.config import RunConfig
from stablessm_core.telemetry import series as names
from stablessm_core.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    restore_training,
    save_checkpoint,
    training_tensors,
)
from stablessm_core.training.forking import forked
from stablessm_core.training.run import Progress, Run


def save(run: Run) -> None:
    """Write a checkpoint of the current step and report it to the sink. Raises OSError if the disk fails."""
    progress, recorder = run.progress, run.recorder
    with recorder.pause():
        state = {
            "config": run.config.model_dump(mode="json"),
            "progress": {"lr_scale": progress.lr_scale, "rollbacks": progress.rollbacks, "seconds": progress.elapsed()}
            | {name: value for name in ("lowered", "nonfinite_evaluations", "bests") if (value := getattr(progress, name))},
            "torch": torch.__version__,
            "numerics": run.numerics.saved(),
        }
        if (loss := recorder.latest.get(names.TRAIN_LOSS)) is not None:
            state["train_loss"] = repr(loss)  # as text, because JSON has no NaN
        tensors, needed = training_tensors(run.model, run.optimizer, recorder.levels()), recorder.needed_checkpoints()
        progress.last, sha256 = save_checkpoint(run.checkpoint_dir, progress.step, tensors, state, needed=needed)
    recorder.checkpoint(progress.step, progress.last, sha256)


def load_own_checkpoint(path: Path, config: RunConfig) -> Checkpoint:
    """A checkpoint for resuming a run with the configuration `config`. Raises CheckpointError if the checkpoint is damaged or
    belongs to a run with other settings."""
    checkpoint = load_checkpoint(path)
    given = config.model_dump(mode="json")
    for section in ("task", "model", "optimizer"):
        saved = _with_defaults(checkpoint.state["config"][section], type(getattr(config, section)))
        if saved != given[section]:
            different = sorted(
                f"{section}.{k}" for k in saved.keys() | given[section].keys() if saved.get(k) != given[section].get(k)
            )
            raise CheckpointError(f"checkpoint {path} belongs to a run with another {', '.join(different)}")
    if checkpoint.step > config.train.steps:
        raise CheckpointError(f"checkpoint {path} is of step {checkpoint.step}; the run has only {config.train.steps} steps")
    return checkpoint


def resume(run: Run, checkpoint: Checkpoint, path: Path | None) -> None:
    """Restore the run's state from its own checkpoint."""
    run.recorder.restore_levels(restore_training(checkpoint, run.model, run.optimizer))
    run.progress = Progress(checkpoint.step, **checkpoint.state["progress"], last=path)
    if (loss := checkpoint.state.get("train_loss")) is not None:  # the loss at the checkpoint's step, in case no step follows
        run.recorder.latest[names.TRAIN_LOSS] = float(loss)


def begin_fork(run: Run, checkpoint: Checkpoint) -> None:
    """Set the run's state from another run's checkpoint. Raises ForkError in the cases listed in `training.forking.forked`."""
    checkpoint, run.fork = forked(checkpoint, run.config, run.model, run.probe.records)
    run.recorder.restore_levels(restore_training(checkpoint, run.model, run.optimizer))
    run.progress = Progress(checkpoint.step, **checkpoint.state["progress"])


def _with_defaults(saved: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    # an older version saved the section without newer fields; a section that this version cannot read is treated as different
    try:
        return section.model_validate(saved).model_dump(mode="json")
    except ValidationError:
        return saved
