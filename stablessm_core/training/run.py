"""What one run is trained with and how far it has come: made from its configuration, saved with checkpoints, read from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from pydantic import BaseModel, ValidationError
from torch import nn

from stablessm_core.config import RunConfig
from stablessm_core.model import build_model
from stablessm_core.scan import resolve_backend
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.feed import Feed
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.probe import Probe
from stablessm_core.telemetry.recorder import Recorder, Sink
from stablessm_core.training.checkpoint import (
    Checkpoint,
    CheckpointError,
    load_checkpoint,
    restore_training,
    save_checkpoint,
    training_tensors,
)
from stablessm_core.training.forking import forked
from stablessm_core.training.numerics import Numerics, choose_numerics, saved_before
from stablessm_core.training.optimizer import Scheduled, build_optimizer, lr_factor
from stablessm_core.training.recording import make_recorder
from stablessm_core.training.step import TrainingStep


@dataclass
class Progress:
    """What a run needs to go on, beside its tensors; saved with each checkpoint."""

    step: int = 0
    lr_scale: float = 1.0
    rollbacks: int = 0  # and lowerings
    lowered: list[int] = field(default_factory=list)  # steps from which on the rates are lower once more
    seconds: float = 0.0  # of training, earlier attempts included
    started: float = field(default_factory=perf_counter)
    last: Path | None = None  # newest checkpoint

    def lr_scale_at(self, step: int, factor: float) -> float:
        """What the schedule's learning rates are multiplied with in this step; factor: of each lowering."""
        return self.lr_scale * factor ** sum(first <= step for first in self.lowered)

    def elapsed(self) -> float:
        return self.seconds + perf_counter() - self.started


@dataclass
class Run:
    """What one run is trained with, and how far it has come. `fatal`, `warned` and `stopped` say why it ended early."""

    config: RunConfig
    device: torch.device
    task: Task
    model: nn.Module
    optimizer: Scheduled
    probe: Probe
    recorder: Recorder
    checkpoint_dir: Path
    numerics: Numerics
    progress: Progress = field(default_factory=Progress)
    results: dict[str, float | None] = field(default_factory=dict)  # of the last evaluation
    fatal: Alert | None = None
    warned: Alert | None = None
    stopped: str | None = None  # what `should_stop` said: "cancel" or "drain"
    fork: dict[str, Any] | None = None  # what it began with, where that was another run's checkpoint


def build(
    config: RunConfig, device: torch.device, sink: Sink, data_root: Path, checkpoint_dir: Path, resumed: Checkpoint | None = None
) -> Run:
    """A run at step 0, with its model on the device and its recorder started; computed as the one that is `resumed` was."""
    saved = None if resumed is None else resumed.state.get("numerics", saved_before(device))
    numerics = choose_numerics(config.train.scan_backend, device, saved)
    task = get_task(config.task, data_root)
    # by name only where that is another than the configuration means here
    kept = None if numerics.scan_backend == resolve_backend(config.train.scan_backend, device) else numerics.scan_backend
    model = build_model(config, task, scan_backend=kept).to(device)
    optimizer = build_optimizer(model, config.optimizer)
    torch.manual_seed(config.train.seed)  # dropout
    probe = Probe(model, all_eigenvalues=config.telemetry.all_eigenvalues)
    recorder = make_recorder(config, task, probe, sink, device)
    return Run(config, device, task, model, optimizer, probe, recorder, checkpoint_dir, numerics)


def resume_from(run: Run, checkpoint: Checkpoint, path: Path | None) -> None:
    """Put the run where this checkpoint of its own left it."""
    run.recorder.restore_levels(restore_training(checkpoint, run.model, run.optimizer))
    run.progress = Progress(checkpoint.step, **checkpoint.state["progress"], last=path)
    if (loss := checkpoint.state.get("train_loss")) is not None:  # of its step: there may be no further one
        run.recorder.latest[names.TRAIN_LOSS] = float(loss)


def begin_fork(run: Run, checkpoint: Checkpoint) -> None:
    """Put the run where another run's checkpoint was. Raises ForkError."""
    checkpoint, run.fork = forked(checkpoint, run.config, run.model)
    run.recorder.restore_levels(restore_training(checkpoint, run.model, run.optimizer))
    run.progress = Progress(checkpoint.step, **checkpoint.state["progress"])


def train_step(run: Run, training: TrainingStep, batches: Feed, step: int) -> None:
    """One step with the learning rates of that step; its row goes into the recorder's ring."""
    scale = run.progress.lr_scale_at(step, run.config.train.rollback_lr_factor)
    training.feed(*batches(step), scale * lr_factor(run.config.optimizer, step, run.config.train.steps))
    training.run()


def save(run: Run) -> None:
    """Write a checkpoint of the present step and tell the sink of it. Raises OSError."""
    progress, recorder = run.progress, run.recorder
    with recorder.pause():
        state = {
            "config": run.config.model_dump(mode="json"),
            "progress": {"lr_scale": progress.lr_scale, "rollbacks": progress.rollbacks, "seconds": progress.elapsed()}
            | ({"lowered": progress.lowered} if progress.lowered else {}),
            "torch": torch.__version__,
            "numerics": run.numerics.saved(),
        }
        if (loss := recorder.latest.get(names.TRAIN_LOSS)) is not None:
            state["train_loss"] = repr(loss)  # as text, for it may be no JSON number
        tensors, needed = training_tensors(run.model, run.optimizer, recorder.levels()), recorder.checkpoints_needed()
        progress.last, sha256 = save_checkpoint(run.checkpoint_dir, progress.step, tensors, state, needed=needed)
    recorder.checkpoint(progress.step, progress.last, sha256)


def load(path: Path, config: RunConfig) -> Checkpoint:
    """A checkpoint to resume from. Raises CheckpointError where it is damaged or of a run with other settings."""
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


def _with_defaults(saved: dict[str, Any], section: type[BaseModel]) -> dict[str, Any]:
    # an older version saved it without the fields that are newer; what this version cannot read differs anyway
    try:
        return section.model_validate(saved).model_dump(mode="json")
    except ValidationError:
        return saved
