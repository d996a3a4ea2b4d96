"""Runs with a planted cause of failure, trained in memory with the project's own model, task, step, probe and detectors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stablessm_core.model import build_model
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.paths import with_settings
from stablessm_core.tasks.loading import get_task
from stablessm_core.telemetry.column_reader import ColumnReader, LayerForm
from stablessm_core.telemetry.detectors import KINDS, Detectors
from stablessm_core.telemetry.nonfinite import as_text
from stablessm_core.telemetry.series import BATCH_NONFINITE, GRAD_NORM, LR, TRAIN_LOSS
from stablessm_core.training.optimizer import build_optimizer
from stablessm_core.training.step import TrainingStep
from stablessm_core.verdict import Layer, Rows, Run, Scalars
from stablessm_core.verdict.memory_source import MemorySource
from stablessm_core.watch.probe import Probe

WEIGHT_NORM = "train/weight_norm"
SMALL: dict[str, Any] = {
    "task": {"name": "polynomial_memory", "length": 100},
    "model": {"n_layers": 1, "d_model": 16, "d_state": 16, "reparameterization": {"name": "direct"}},
    "train": {"batch_size": 16, "device": "cpu"},
}
DIGITS = {"task": {"name": "digits"}}
Spoil = Callable[[int, Tensor, Tensor], tuple[Tensor, Tensor]]


class Ring:
    """Replaces the recorder's ring and keeps every row."""

    def __init__(self) -> None:
        self.rows: list[Tensor] = []

    def write(self, row: Tensor) -> None:
        self.rows.append(row.clone())


def _largest(values: Tensor) -> float:
    """The largest absolute value; NaN for whole numbers, which are classes or tokens."""
    return float(values.abs().max()) if values.is_floating_point() else float("nan")


def configured(**changes: Any) -> RunConfig:
    """The configuration SMALL with changes by path; __ stands for the dot of a path."""
    return parse_config(with_settings(SMALL, {path.replace("__", "."): value for path, value in changes.items()}))


def trained(
    config: RunConfig, *, spoil: Spoil | None = None, loss: Callable[[Any, Tensor, Tensor], Tensor] | None = None
) -> tuple[Run, MemorySource]:
    """The run, stopped at its first non-finite row as by the trainer, and everything that it recorded.

    spoil: a function that changes the batch of a step. loss: replaces the task's loss.
    """
    torch.set_num_threads(1)
    settings = config.train
    task = get_task(config.task, Path("unused"))
    if loss is not None:
        task.loss = loss.__get__(task)  # type: ignore[method-assign, attr-defined]
    model = build_model(config, task)
    optimizer, probe, ring = build_optimizer(model, config.optimizer), Probe(model), Ring()
    batch = task.batch(1, settings.batch_size, settings.seed, "cpu")
    step = TrainingStep(
        model, task, optimizer, probe, ring, batch=batch, precision=settings.precision, grad_clip=config.optimizer.grad_clip
    )  # type: ignore[arg-type]
    ends = np.cumsum([width for _, width in probe.layout])
    where = {name: slice(int(end) - width, int(end)) for (name, width), end in zip(probe.layout, ends, strict=True)}
    layers = [LayerForm(one.layer, one.path, one.form, one.width, one.wide) for one in probe.records]
    watched = torch.tensor(
        [
            i
            for name, at in where.items()
            if name in (TRAIN_LOSS, "norms", BATCH_NONFINITE) or name.startswith("state/")
            for i in range(at.start, at.stop)
        ]
    )
    flag = list(watched).index(where[BATCH_NONFINITE].start)
    sizes: list[tuple[float, float]] = []
    for s in range(1, settings.steps + 1):
        x, y = task.batch(s, settings.batch_size, settings.seed, "cpu")
        x, y = spoil(s, x, y) if spoil else (x, y)
        sizes.append((_largest(x), _largest(y)))
        step.feed(x, y, 1.0)
        step.run()
        row = ring.rows[-1][watched]
        if not bool(row.isfinite().all()) or row[flag] > 0:
            break
    table = torch.stack(ring.rows).numpy()
    columns = {name: table[:, at] for name, at in where.items()}
    if WEIGHT_NORM not in columns:
        columns[WEIGHT_NORM] = np.sqrt((columns["norms"][:, : len(probe.parameter_names)] ** 2).sum(1, keepdims=True))
    detectors = Detectors(probe.parameter_names, **config.alerts.model_dump(exclude={"rules"}))
    alerts = [alert.__dict__ for alert in detectors.scan(ColumnReader(layers, detectors).read(1, columns)[0])]
    fatal = next((alert for alert in alerts if KINDS[alert["kind"]].nonfinite), None)
    steps = np.arange(1, len(table) + 1)
    rows = {}
    for layer in layers:
        kinds = {
            "weight": f"ssm/{layer.index}/weight",
            "grad_over_weight": f"ssm/{layer.index}/grad_over_weight",
            "dt": f"ssm/{layer.index}/dt",
        }
        rows[layer.index] = Rows.derived(
            layer.form, steps, {kind: columns[name] for kind, name in kinds.items() if name in columns}
        )
    scalars = Scalars(
        step=steps, loss=columns[TRAIN_LOSS][:, 0].astype(float), grad_norm=columns[GRAD_NORM][:, 0].astype(float),
        lr=columns[LR][:, 0].astype(float), batch=columns[BATCH_NONFINITE][:, 0],
        weight_norm=columns[WEIGHT_NORM][:, 0].astype(float),
        largest_input=np.array(sizes)[:, 0], largest_target=np.array(sizes)[:, 1],
    )  # fmt: skip
    divergence = fatal and {name: fatal[name] for name in ("step", "layer", "eigenvalue", "tensor")} | {
        "value": as_text(fatal["value"])
    }
    run = Run(
        status="diverged" if fatal else "finished",
        step=len(table),
        config=config.model_dump(mode="json"),
        environment={"parameters": sum(p.numel() for p in model.parameters()), "data": {"length": task.length}},
        divergence=divergence,
        alerts=alerts,
        layers=[Layer(layer.index, 16, layer.form) for layer in layers],
    )
    return run, MemorySource(scalars, rows)
