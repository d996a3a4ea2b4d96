"""Training steps for measurements: a model with its data and telemetry, trained in the same way as by the trainer."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.tasks.feed import Feed
from stablessm_core.tasks.images import ImageTask
from stablessm_core.telemetry.blocks import encode
from stablessm_core.telemetry.sink import Flush, MemorySink
from stablessm_core.training.environment import device_name
from stablessm_core.training.execution import Execution, prepare
from stablessm_core.training.optimizer import build_optimizer
from stablessm_core.training.recording import make_recorder
from stablessm_core.training.run import magnitudes
from stablessm_core.training.step import TrainingStep
from stablessm_core.watch.probe import Probe

LENGTH = 784


class Shape(NamedTuple):
    layers: int
    d_model: int
    d_state: int
    batch: int
    length: int = LENGTH

    def __str__(self) -> str:
        return f"{self.layers} x ({self.d_model}, {self.d_state}), batch {self.batch}, length {self.length}"


class EncodingSink(MemorySink):
    """Encodes blocks as the database writer does, and counts the encoded bytes."""

    stored, values, flushes = 0, 0, 0

    def write(self, flush: Flush) -> None:
        self.flushes += 1
        for block in flush.blocks:
            self.stored += len(encode(block.values))
            self.values += block.values.size if block.level == 0 else 0


def images(length: int = LENGTH) -> ImageTask:
    """A task with 60,000 random images of MNIST's size, fed one grey value at a time. It needs no data file."""
    random = np.random.default_rng(0)
    data = [(random.integers(0, 256, (n, length), np.uint8), random.integers(0, 10, n, np.uint8)) for n in (60_000, 100)]
    return ImageTask(data[0], data[1], permuted=False, mean=33.3, deviation=78.6)


class Rig:
    """A run that trains some steps at a time. `recorder` encodes the run's telemetry in the same way as for storage."""

    def __init__(self, task: ImageTask, shape: Shape, device: torch.device, sink: MemorySink | None = None) -> None:
        self.config: RunConfig = parse_config(
            {
                "task": {"name": "digits"},  # a placeholder; the data comes from the argument `task`
                "model": {"n_layers": shape.layers, "d_model": shape.d_model, "d_state": shape.d_state},
                "optimizer": {"lr": 1e-3},
                "train": {"batch_size": shape.batch, "device": device.type},
            }
        )
        self.device, self.done, self.sink = device, 0, sink or EncodingSink()
        model = build_model(self.config, task).to(device)
        probe = Probe(model, None, magnitudes(task))
        self.parameters = sum(p.numel() for p in model.parameters())
        self.recorder = make_recorder(self.config, task, probe, self.sink, device)
        self.feed = Feed(task, shape.batch, 0, device)
        optimizer = build_optimizer(model, self.config.optimizer)
        self.step = TrainingStep(model, task, optimizer, probe, self.recorder.ring, batch=self.feed(1))

    def prepare(self, execution: str, steps: int = 1 << 30) -> Execution:
        """Prepare the execution mode. steps: the number of steps of the run that this measurement represents."""
        return prepare(self.step, execution, steps=steps)

    def go(self, steps: int, after: Callable[[], None] | None = None, step: TrainingStep | None = None) -> float:
        """Run the steps and return how long they take, including the device's work, in seconds.

        after: called after each step instead of the recorder. step: another training step of the same model, which is run
        instead of the rig's own step.
        """
        step = step or self.step
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(steps):
            self.done += 1
            step.feed(*self.feed(self.done), 1.0)
            step.run()
            if after is None:
                self.recorder.count_row(self.done)
            else:
                after()
        synchronize(self.device)
        return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device) -> str:
    threads = "" if device.type == "cuda" else f", {torch.get_num_threads()} thread(s)"
    load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores when this began"
    return f"{device_name(device)}{threads}; torch {torch.__version__}, python {platform.python_version()}; {load}"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """A Markdown table. All columns except the first two are numbers."""
    rule = ["---" if i < 2 else "---:" for i in range(len(header))]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]
