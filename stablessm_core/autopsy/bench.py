"""Trains steps of a run again, with the same bits, and without recording them.

A bench has what a run has: model, optimizer, task and training step. It can start from any state of the run, and keeps copies of
states in memory. The rows of its steps say whether numbers are finite, with the same checks as the recorder.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig
from stablessm_core.tasks.base import Task
from stablessm_core.tasks.feed import Feed
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry import series as names
from stablessm_core.training.checkpoint import Checkpoint, restore_training, training_tensors
from stablessm_core.training.environment import pick_device
from stablessm_core.training.execution import prepare
from stablessm_core.training.numerics import Numerics, choose_numerics
from stablessm_core.training.optimizer import Scheduled, build_optimizer, lr_factor, steps_per_epoch
from stablessm_core.training.run import Progress, magnitudes
from stablessm_core.training.step import TrainingStep, train_step
from stablessm_core.watch.probe import Probe
from stablessm_core.watch.ring import Ring
from stablessm_core.watch.watchable import WatchedRecord, watched_records

CHUNK = 16  # number of steps between two reads of their rows, if steps are short
LONG_STEP = 0.02  # seconds
EXECUTIONS = {"cuda_graph+compile": "graph", "cuda_graph": "auto", "compile": "compile", "eager": "eager"}


class Row(NamedTuple):
    """A trained step. finite: False if the recorder would call the step fatal. values: the complete row, (columns,) float32."""

    step: int
    loss: np.float32
    grad_norm: np.float32
    finite: bool
    values: np.ndarray


@dataclass
class Bench:
    """The objects that train a run again, and its progress."""

    config: RunConfig
    device: torch.device
    task: Task
    numerics: Numerics
    model: nn.Module
    records: list[WatchedRecord]
    optimizer: Scheduled
    batches: Callable[[int], tuple[torch.Tensor, torch.Tensor]]  # the batch of a step: (x, y)
    training: TrainingStep
    columns: Mapping[str, slice]
    progress: Progress
    initial: Checkpoint  # the state at step 0, from the seed
    seconds_per_step: float = 0.0
    held: float | None = None  # a multiplier of the learning rates that replaces that of each step

    def restore(self, state: Checkpoint) -> None:
        """Continue from this state."""
        restore_training(state, self.model, self.optimizer)
        self.progress = Progress(state.step, **state.state["progress"])

    def state(self) -> Checkpoint:
        """A copy of the current state, on the run's device."""
        tensors = {path: t.detach().clone() for path, t in training_tensors(self.model, self.optimizer, {}).items()}
        progress = {"lr_scale": self.progress.lr_scale, "lowered": list(self.progress.lowered)}
        return Checkpoint(self.progress.step, tensors, {"progress": progress, "config": self.config.model_dump(mode="json")})

    def multiplier(self, step: int) -> float:
        """The multiplier of the learning rates at this step."""
        if self.held is not None:
            return self.held
        scale = self.progress.lr_scale_at(step, self.config.train.rollback_lr_factor)
        train = self.config.train
        epoch_steps = steps_per_epoch(self.task.train_examples, train.batch_size)
        return scale * lr_factor(self.config.optimizer, step, train.steps, epoch_steps)

    def train(self, to_step: int) -> list[Row]:
        """Train up to this step, but at most CHUNK steps, or one step if steps are long. Returns their rows."""
        first = self.progress.step + 1
        steps = range(first, min(to_step, self.progress.step + (CHUNK if self.seconds_per_step < LONG_STEP else 1)) + 1)
        began = perf_counter()
        for step in steps:
            train_step(self.training, self.batches, step, self.multiplier(step))
            self.training.ring.advance()
        self.progress.step = steps[-1]
        rows = self.training.ring.take().wait()
        self.seconds_per_step = (perf_counter() - began) / len(steps)
        loss, norm = (rows[:, self.columns[name]][:, 0] for name in (names.TRAIN_LOSS, names.GRAD_NORM))
        return [Row(*row) for row in zip(steps, loss, norm, self._finite(rows).tolist(), rows, strict=True)]

    def _finite(self, rows: np.ndarray) -> np.ndarray:
        """False for each row that the recorder would call fatal, (rows,)."""

        def finite(columns: np.ndarray) -> np.ndarray:
            return np.asarray(np.isfinite(columns).all(axis=1))

        norms = rows[:, self.columns[names.NORMS]]
        weights, gradients = np.split(norms, 2, axis=1)
        good_batch = rows[:, self.columns[names.BATCH_NONFINITE]][:, 0] == 0
        states = {names.state_column(r.id) for r in self.records}
        computed = finite(rows[:, self.columns[names.TRAIN_LOSS]]) & finite(gradients)
        for name in states & self.columns.keys():
            computed &= finite(rows[:, self.columns[name]])
        skipped = ~good_batch & (self.config.train.on_bad_batch == "skip")
        return np.asarray(finite(weights) & ((good_batch & computed) | skipped))

    def change_rates(self, divisor: float, group: str | None = None) -> bool:
        """Divide the rates of a group, or all rates. Infinity sets them to 0. Returns False if there is no such group."""
        groups = self.optimizer.param_groups
        rates = [g["base_lr"] / (divisor if group in (None, g["name"]) else 1.0) for g in groups]
        common = self.config.optimizer.lr / (divisor if group is None else 1.0)
        self.optimizer.set_unscheduled_rates([*rates, common])
        return any(group in (None, g["name"]) for g in groups)

    def leave_out(self, before: Checkpoint) -> None:
        """Leave out the step after `before`: weights and moments stay as they are. The step draws its random numbers, so that
        later steps drop the same units."""
        self.restore(before)
        self.train(before.step + 1)
        drawn = {path: t for path, t in self.state().tensors.items() if path.startswith("rng/")}
        self.restore(Checkpoint(before.step + 1, before.tensors | drawn, before.state))

    def state_bytes(self) -> int:
        """The size of one copy of the state."""
        return sum(t.numel() * t.element_size() for t in training_tensors(self.model, self.optimizer, {}).values())


def build_bench(config: RunConfig, data_root: Path, environment: Mapping[str, Any]) -> Bench:
    """A bench at step 0 of the run. environment: the recorded environment, which names the code that computed the run.

    Raises ValueError for a missing device or data set, and whatever a plug-in raises.
    """
    device = pick_device(config.train.device)
    numerics = choose_numerics(config.train.scan_backend, device, _numerics_of(environment))
    task = get_task(config.task, data_root)
    model = build_model(config, task, scan_backend=numerics.model_backend).to(device)
    records = watched_records(model, all_eigenvalues=config.telemetry.all_eigenvalues)
    return _on_bench(config, device, task, numerics, model, records, environment)


def bench_with(bench: Bench, model: nn.Module, config: RunConfig) -> Bench:
    """A bench of the same run with another model or other settings, trained operation by operation."""
    model = model.to(bench.device)
    records = watched_records(model, all_eigenvalues=config.telemetry.all_eigenvalues)
    environment = {"execution": {"mode": "eager"}}
    return _on_bench(config, bench.device, bench.task, bench.numerics, model, records, environment)


def _on_bench(
    config: RunConfig, device: torch.device, task: Task, numerics: Numerics, model: nn.Module, records: list[WatchedRecord],
    environment: Mapping[str, Any],
) -> Bench:  # fmt: skip
    optimizer = build_optimizer(model, config.optimizer, records)
    torch.manual_seed(config.train.seed)  # the seed for dropout
    probe = Probe(model, records, magnitudes(task))
    ring = Ring(sum(width for _, width in probe.layout), CHUNK, device)
    batches = Feed(task, config.train.batch_size, config.train.seed, device)
    training = TrainingStep(
        model, task, optimizer, probe, ring,
        batch=batches(1), precision=config.train.precision, grad_clip=config.optimizer.grad_clip,
        skip_bad_batches=config.train.on_bad_batch == "skip",
    )  # fmt: skip
    mode = str((environment.get("execution") or {}).get("mode"))
    prepare(training, EXECUTIONS.get(mode, config.train.execution), steps=1, loop=config.train.scan_backend == "reference")
    ends = np.cumsum([width for _, width in probe.layout])
    columns = {name: slice(int(end) - width, int(end)) for (name, width), end in zip(probe.layout, ends, strict=True)}
    initial = Checkpoint(0, {}, {})
    bench = Bench(
        config, device, task, numerics, model, records, optimizer, batches, training, columns, Progress(), initial
    )  # fmt: skip
    bench.initial = bench.state()
    return bench


def _numerics_of(environment: Mapping[str, Any]) -> dict[str, str] | None:
    """The numerics that the environment of a run names."""
    if "scan_backend" not in environment:
        return None
    products = (environment.get("products") or {}).get("library")
    return {"scan_backend": environment["scan_backend"]} | ({"products": products} if products else {})
