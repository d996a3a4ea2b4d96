"""Trains a run and keeps the row of every step, so that changed detectors can judge the run again without training.

A kept run is one file: its rows as they were written on the device, and what is needed to read them. The files are a cache and
belong to one version of the recorder.
"""

from __future__ import annotations

import pickle
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.tasks.feed import Feed
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.detectors import Alert, Detectors, Rows
from stablessm_core.telemetry.detectors.alert import Setup
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.execution import prepare
from stablessm_core.training.recording import layer_forms, setup_of
from stablessm_core.training.run import build_run
from stablessm_core.training.step import TrainingStep, train_step
from stablessm_core.watch.ring import Ring

BETWEEN_LOOKS = 16  # steps between two looks whether the loss is still finite


@dataclass(frozen=True)
class RowsOfRun:
    """The rows of a run up to its last or its fatal step.

    rows: float32 (steps, columns). layout: the names and widths of the columns. layers, parameters: as the detectors need them.
    """

    config: dict[str, Any]
    rows: np.ndarray
    layout: list[tuple[str, int]]
    layers: list[LayerForm]
    parameters: list[str]
    setup: Setup

    def columns(self) -> dict[str, np.ndarray]:
        ends = np.cumsum([width for _, width in self.layout])
        return {name: self.rows[:, end - width : end] for (name, width), end in zip(self.layout, ends, strict=True)}

    def read(self, detectors: Detectors) -> Rows:
        return ColumnReader(self.layers, detectors).read(1, self.columns())[0]

    def detectors(self) -> Detectors:
        return Detectors(self.parameters, self.setup, **_thresholds(parse_config(self.config)))

    def judge(self) -> tuple[int | None, list[Alert]]:
        """The fatal step, None if the run has none, and the alerts up to this step."""
        detectors = self.detectors()
        rows = self.read(detectors)
        fatal = detectors.first_nonfinite(rows)
        detectors.reset()
        return None if fatal is None else fatal + 1, detectors.scan(rows if fatal is None else rows.cut(fatal + 1))


def rows_of_run(config: dict[str, Any], folder: Path | None = None) -> RowsOfRun:
    """The rows of the run, from `folder` if it is kept there; otherwise the run is trained and kept."""
    path = None if folder is None else folder / f"{config['name']}.pickle"
    if path is not None and path.exists():
        found: RowsOfRun = pickle.loads(path.read_bytes())
        if found.config == config:
            return found
    found = _trained(config)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(found))
    return found


def _trained(data: dict[str, Any]) -> RowsOfRun:
    torch.set_num_threads(1)
    config, device = parse_config(data), torch.device("cpu")
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as folder:
        run = build_run(config, device, MemorySink(), Path(), Path(folder))
        try:
            batches, steps = Feed(run.task, config.train.batch_size, config.train.seed, device), config.train.steps
            columns = sum(width for _, width in run.probe.layout)
            ring = Ring(columns, steps + 8, device)  # more rows than steps, because preparing the step may write some
            clip = config.optimizer.grad_clip
            training = TrainingStep(
                run.model,
                run.task,
                run.optimizer,
                run.probe,
                ring,
                batch=batches(1),
                precision=config.train.precision,
                grad_clip=clip,
            )
            prepare(training, config.train.execution, steps=steps)
            first = int(ring.cursor)
            for step in range(1, steps + 1):
                train_step(training, batches, step, run.lr_multiplier(step))
                if step % BETWEEN_LOOKS == 0 and not ring.buffer[first + step - 1, 0].isfinite():
                    break
            rows = ring.buffer[first : first + step].numpy().copy()
        finally:
            run.recorder.close()
    found = RowsOfRun(
        data, rows, list(run.probe.layout), layer_forms(run.probe), run.probe.parameter_names, setup_of(config, run.task)
    )
    detectors = found.detectors()
    fatal = detectors.first_nonfinite(found.read(detectors))
    return found if fatal is None else _cut(found, fatal + 1)


def _cut(found: RowsOfRun, steps: int) -> RowsOfRun:
    return RowsOfRun(found.config, found.rows[:steps].copy(), found.layout, found.layers, found.parameters, found.setup)


def _thresholds(config: RunConfig) -> dict[str, Any]:
    return config.alerts.model_dump(exclude={"rules"})
