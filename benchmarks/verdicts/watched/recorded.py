"""Reads the file of a watched run as the service stores it, for the verdict and for the audit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.verdicts.audit.recorded_facts import LayerRows, layers_of
from benchmarks.verdicts.recorded import ALERT_FIELDS, SERIES_OF, _aligned, _rows
from benchmarks.verdicts.watched.loop import Loop
from stablessm_core.report.messages import (
    CatalogueMessage,
    EndMessage,
    EnvironmentMessage,
    MetricsMessage,
    from_bytes,
)
from stablessm_core.report.outbox import read_run_file
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.how import How, read_how
from stablessm_core.telemetry.sink import Flush, MemorySink
from stablessm_core.verdict import Layer, Run, Scalars
from stablessm_core.verdict.memory_source import MemorySource


@dataclass
class Watched:
    """The content of a run's file. loop: what the loop itself saw."""

    loop: Loop
    opening: Mapping[str, Any]
    sink: MemorySink = field(default_factory=MemorySink)
    status: str = "lost"
    reason: str = ""
    environment: dict[str, Any] = field(default_factory=dict)
    metrics: dict[str, list[tuple[int, float]]] = field(default_factory=dict)

    @property
    def how(self) -> How:
        return read_how(self.opening.get("how") or self.opening)

    # what the audit asks
    config: dict[str, Any] = field(default_factory=lambda: {"optimizer": {"name": ""}, "telemetry": {"every": 1}})
    findings: Mapping[str, Any] | None = None

    @property
    def constant_loss(self) -> float | None:
        return None

    @property
    def weight_norm(self) -> dict[int, float]:
        return {}

    @property
    def died(self) -> bool:
        return bool(self.loop.nonfinite)

    @property
    def died_at(self) -> int | None:
        return self.loop.nonfinite[0][0] if self.loop.nonfinite else None

    @property
    def tensor(self) -> str:
        return self.loop.nonfinite[0][1] if self.loop.nonfinite else ""

    @property
    def last(self) -> int:
        return max(self.loop.losses)

    @property
    def alerts(self) -> list[Any]:
        return self.sink.alerts

    @property
    def loss(self) -> dict[int, float]:
        return self.loop.losses

    @property
    def norm(self) -> dict[int, float]:
        return self.loop.norms

    @property
    def lr(self) -> dict[int, float]:
        return self.loop.rates

    @property
    def length(self) -> int | None:
        return int(self.loop.options["length"])

    @property
    def steps_taken(self) -> int:
        """The number of steps of the optimizer."""
        return self.loop.taken

    @property
    def complete_layers(self) -> dict[int, LayerRows]:
        return self.layers

    @property
    def complete(self) -> MemorySink:
        return self.sink

    @cached_property
    def layers(self) -> dict[int, LayerRows]:
        return layers_of(self.sink)

    @property
    def evaluations(self) -> dict[int, float]:
        return dict(self.metrics.get("val/loss") or ())

    def finite_losses(self, upto: int) -> dict[int, float]:
        return {s: v for s, v in self.loss.items() if s <= upto and math.isfinite(v)}

    def best(self, upto: int) -> float:
        return min(self.finite_losses(upto).values(), default=math.nan)


def read_watched(loop: Loop, folder: Path) -> Watched:
    """The run in the only file of the folder."""
    (path,) = folder.glob("*.ssmr")
    file = read_run_file(path)
    found = Watched(loop, file.opening)
    found.config["optimizer"]["name"] = loop.options["optimizer"]
    found.config["telemetry"]["every"] = loop.options.get("every", 1)
    for record in file.records():
        message = from_bytes(record)
        if isinstance(message, CatalogueMessage):
            found.sink.open(message.series)
        elif isinstance(message, Flush):
            found.sink.write(message)
        elif isinstance(message, EndMessage):
            found.status, found.reason = message.status, message.reason
        elif isinstance(message, EnvironmentMessage):
            found.environment |= message.facts
        elif isinstance(message, MetricsMessage):
            for name, values in message.values.items():
                known = [(s, v) for s, v in zip(message.steps, values, strict=True) if v is not None]
                found.metrics.setdefault(name, []).extend(known)
    return found


def watched_run_and_source(watched: Watched) -> tuple[Run, MemorySource]:
    """What the verdict receives of a reported run."""
    sink, layers, rows = watched.sink, [], {}
    for name, spec in sink.catalogue.items():
        index = names.layer_of(spec.group)
        if not name.endswith("/weight") or index is None or spec.group != names.layer_group(index):
            continue
        form = Form.from_data(spec.form) if spec.form else None
        layers.append(Layer(index, spec.width, form))
        rows[index] = _rows(sink, index, spec.width, form)
    run = Run(
        status=watched.status,
        step=sink.step,
        config={},
        reason=watched.reason,
        environment=watched.environment,
        alerts=[{name: getattr(alert, name) for name in ALERT_FIELDS} for alert in sink.alerts],
        layers=sorted(layers, key=lambda layer: layer.index),
        reported=watched.how,
        paths=tuple(str(layer.get("path", "")) for layer in watched.opening.get("layers") or ()),
    )
    told = sorted(pair for name, pairs in watched.metrics.items() if names.is_evaluation_loss(name) for pair in pairs)
    return run, MemorySource(_scalars(sink), rows, ([s for s, _ in told], [loss for _, loss in told]))


def _scalars(sink: MemorySink) -> Scalars:
    if names.TRAIN_LOSS not in sink.catalogue:
        empty = np.empty(0)
        return Scalars(step=np.empty(0, np.int64), loss=empty, grad_norm=empty, lr=empty)
    step = sink.series(names.TRAIN_LOSS)[0]
    columns: dict[str, Any] = {name: np.full(len(step), np.nan) for name in ("grad_norm", "lr")}
    columns |= {field: _aligned(step, *sink.series(name)) for field, name in SERIES_OF.items() if name in sink.catalogue}
    return Scalars(step=step, **columns)
