"""The objects with which a run is trained, and the progress of the run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.sink import ResumableSink
from stablessm_core.training.numerics import Numerics, choose_numerics
from stablessm_core.training.optimizer import Scheduled, build_optimizer, lr_factor, steps_per_epoch
from stablessm_core.training.recording import make_recorder
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.recorder import ResumableRecorder
from stablessm_core.watch.watchable import watched_records


@dataclass
class Progress:
    """The state that a run needs to continue, in addition to its tensors. It is saved with each checkpoint."""

    step: int = 0
    lr_scale: float = 1.0
    rollbacks: int = 0  # number of rollbacks, including reductions of the learning rate
    lowered: list[int] = field(default_factory=list)  # steps at which the learning rates are reduced once more
    nonfinite_evaluations: list[int] = field(default_factory=list)  # steps of the last evaluations, as far as they are not finite
    # each evaluation that was the best so far on a task with a separate test set: its step, its score, and the test's results
    bests: list[dict[str, Any]] = field(default_factory=list)
    seconds: float = 0.0  # training time in seconds, including earlier attempts
    started: float = field(default_factory=perf_counter)
    last: Path | None = None  # newest checkpoint

    def lr_scale_at(self, step: int, factor: float) -> float:
        """Multiplier for the scheduled learning rates at this step. factor: the multiplier that each reduction applies."""
        return self.lr_scale * factor ** sum(first <= step for first in self.lowered)

    def elapsed(self) -> float:
        """The training time so far, including earlier attempts, in seconds."""
        return self.seconds + perf_counter() - self.started


@dataclass
class Run:
    """The objects with which a run is trained, and the progress of the run. `fatal`, `warned` and `stopped` are reasons for an
    early end."""

    config: RunConfig
    device: torch.device
    task: Task
    model: nn.Module
    optimizer: Scheduled
    probe: Probe
    recorder: ResumableRecorder
    checkpoint_dir: Path
    numerics: Numerics
    progress: Progress = field(default_factory=Progress)
    results: dict[str, float | None] = field(default_factory=dict)  # results of the last evaluation
    fatal: Alert | None = None
    warned: Alert | None = None
    stopped: str | None = None  # the result of `should_stop`: "cancel" or "drain"
    fork: dict[str, Any] | None = None  # facts about the checkpoint of another run from which this run started

    def lr_multiplier(self, step: int) -> float:
        """The multiplier of the learning rates at this step, from the schedule and from the rollbacks and reductions so far."""
        scale = self.progress.lr_scale_at(step, self.config.train.rollback_lr_factor)
        train = self.config.train
        epoch_steps = steps_per_epoch(self.task.train_examples, train.batch_size)
        return scale * lr_factor(self.config.optimizer, step, train.steps, epoch_steps)


def magnitudes(task: Task) -> list[str]:
    """The series with the largest numbers of a batch: of its input and of its target, unless these are tokens or classes."""
    real = {names.LARGEST_INPUT: task.vocabulary is None, names.LARGEST_TARGET: task.kind == "regression"}
    return [name for name, recorded in real.items() if recorded]


def build_run(
    config: RunConfig,
    device: torch.device,
    sink: ResumableSink,
    data_root: Path,
    checkpoint_dir: Path,
    saved_numerics: dict[str, str] | None = None,
) -> Run:
    """A run at step 0, with its model on the device and its recorder started.

    saved_numerics: `Numerics.saved` from the checkpoint that is resumed, so that the same code computes the run as before.
    """
    numerics = choose_numerics(config.train.scan_backend, device, saved_numerics)
    task = get_task(config.task, data_root)
    model = build_model(config, task, scan_backend=numerics.model_backend).to(device)
    records = watched_records(model, all_eigenvalues=config.telemetry.all_eigenvalues)
    optimizer = build_optimizer(model, config.optimizer, records)
    torch.manual_seed(config.train.seed)  # the seed for dropout
    probe = Probe(model, records, magnitudes(task))
    recorder = make_recorder(config, task, probe, sink, device)
    return Run(config, device, task, model, optimizer, probe, recorder, checkpoint_dir, numerics)
