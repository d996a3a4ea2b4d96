"""Training steps to be measured: a model, its data and its telemetry, driven as the trainer drives them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from stablessm_core.config import RunConfig, parse_config
from stablessm_core.model import build_model
from stablessm_core.tasks.feed import Feed
from stablessm_core.tasks.images import ImageTask
from stablessm_core.telemetry.blocks import encode
from stablessm_core.telemetry.probe import Probe
from stablessm_core.telemetry.recorder import Flush, MemorySink
from stablessm_core.training.environment import device_name
from stablessm_core.training.execution import Execution, prepare
from stablessm_core.training.optimizer import build_optimizer
from stablessm_core.training.recording import make_recorder
from stablessm_core.training.step import TrainingStep

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
    """Does what a database writer does before it meets the database, and counts the bytes."""

    stored, values, flushes = 0, 0, 0

    def write(self, flush: Flush) -> None:
        self.flushes += 1
        for block in flush.blocks:
            self.stored += len(encode(block.values))
            self.values += block.values.size if block.level == 0 else 0


def images(length: int = LENGTH) -> ImageTask:
    """Random pictures in the size of MNIST, so that no file is needed: 60,000 of them, one grey value at a time."""
    random = np.random.default_rng(0)
    data = [(random.integers(0, 256, (n, length), np.uint8), random.integers(0, 10, n, np.uint8)) for n in (60_000, 100)]
    return ImageTask(data[0], data[1], permuted=False, mean=33.3, deviation=78.6)


class Rig:
    """One run in slices. `step` counts; the telemetry of `recorder` is encoded as it would be stored."""

    def __init__(self, task: ImageTask, shape: Shape, device: torch.device, sink: MemorySink | None = None) -> None:
        self.config: RunConfig = parse_config(
            {
                "task": {"name": "digits"},  # only its name: the data are the task's above
                "model": {"n_layers": shape.layers, "d_model": shape.d_model, "d_state": shape.d_state},
                "optimizer": {"lr": 1e-3},
                "train": {"batch_size": shape.batch, "device": device.type},
            }
        )
        self.device, self.done, self.sink = device, 0, sink or EncodingSink()
        model = build_model(self.config, task).to(device)
        probe = Probe(model)
        self.parameters = sum(p.numel() for p in model.parameters())
        self.recorder = make_recorder(self.config, task, probe, self.sink, device)
        self.feed = Feed(task, shape.batch, 0, device)
        optimizer = build_optimizer(model, self.config.optimizer)
        self.step = TrainingStep(model, task, optimizer, probe, self.recorder.ring, batch=self.feed(1))

    def prepare(self, execution: str, steps: int = 1 << 30) -> Execution:
        """As in the configuration; steps: of the run that this stands for."""
        return prepare(self.step, execution, steps=steps)

    def go(self, steps: int, after: Callable[[], None] | None = None, step: TrainingStep | None = None) -> float:
        """Seconds for so many steps, the device's work included.

        after: done after each step, in place of the recorder. step: another step of the same model, in place of the rig's.
        """
        step = step or self.step
        synchronize(self.device)
        began = time.perf_counter()
        for _ in range(steps):
            self.done += 1
            step.feed(*self.feed(self.done), 1.0)
            step.run()
            if after is None:
                self.recorder.recorded(self.done)
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
    """A Markdown table; all columns but the first two are numbers."""
    rule = ["---" if i < 2 else "---:" for i in range(len(header))]
    return ["| " + " | ".join(cells) + " |" for cells in (header, rule, *rows)]
