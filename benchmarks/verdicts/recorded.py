"""Trains a run in this process and reads its recorded numbers as the service reads them for a verdict."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stablessm_core.spec.config import parse_config
from stablessm_core.spec.paths import with_settings
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form, spread
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.training.train import Outcome, train
from stablessm_core.verdict import Layer, Rows, Run, Scalars
from stablessm_core.verdict.memory_source import MemorySource

ALERT_FIELDS = ("kind", "step", "layer", "eigenvalue", "tensor", "value", "message")
SERIES_OF = {  # the field of Scalars -> its series
    "loss": names.TRAIN_LOSS,
    "grad_norm": names.GRAD_NORM,
    "lr": names.LR,
    "weight_norm": names.WEIGHT_NORM,
    "batch": names.BATCH_NONFINITE,
    "largest_input": names.LARGEST_INPUT,
    "largest_target": names.LARGEST_TARGET,
}

Config = dict[str, Any]


@dataclass(frozen=True)
class Recorded:
    """A trained run. config: the complete configuration. environment: as stored with a run."""

    config: Config
    outcome: Outcome
    sink: MemorySink
    environment: dict[str, Any]

    @property
    def died(self) -> bool:
        return self.outcome.status == "diverged"

    @property
    def lives(self) -> bool:
        """True if the run has trained all its steps and every number was finite, the evaluation included."""
        evaluated = self.outcome.result["eval_loss"]
        return self.outcome.status == "finished" and evaluated is not None and bool(np.isfinite(evaluated))

    @property
    def losses(self) -> np.ndarray:
        """The recorded training losses, (rows,) float64."""
        return self.sink.series(names.TRAIN_LOSS)[1][:, 0].astype(np.float64)


def trained(
    config: Config,
    changes: Mapping[str, Any] | None = None,
    *,
    folder: Path | None = None,
    sink: MemorySink | None = None,
    **options: Any,
) -> Recorded:
    """Train a run. changes: settings by dotted path. folder: where its checkpoints stay. options: as of `train`."""
    parsed = parse_config(with_settings(config, changes or {}))
    sink, environment = sink or MemorySink(), dict[str, Any]()
    with tempfile.TemporaryDirectory() as scratch:
        outcome = train(
            parsed,
            sink=sink,
            data_root=Path(scratch),
            checkpoint_dir=folder or Path(scratch) / "checkpoints",
            on_ready=environment.update,
            **options,
        )
    return Recorded(parsed.model_dump(mode="json"), outcome, sink, environment)


def run_and_source(recorded: Recorded, first_step: int = 1) -> tuple[Run, MemorySource]:
    """What the verdict receives."""
    outcome, sink = recorded.outcome, recorded.sink
    groups = {spec.group for name, spec in sink.catalogue.items() if name.endswith("/weight")}
    layers, rows = [], {}
    for group in sorted(groups):
        index = names.layer_of(group)
        if index is None or group != names.layer_group(index):
            continue
        weight = sink.catalogue[names.layer_series(index, "weight")]
        form = Form.from_data(weight.form) if weight.form else None
        layers.append(Layer(index, weight.width, form))
        rows[index] = _rows(sink, index, weight.width, form)
    run = Run(
        status=outcome.status,
        step=sink.step,
        config=recorded.config,
        reason=outcome.reason,
        environment=recorded.environment,
        divergence=outcome.divergence,
        alerts=[{name: getattr(alert, name) for name in ALERT_FIELDS} for alert in sink.alerts],
        layers=sorted(layers, key=lambda layer: layer.index),
        first_step=first_step,
    )
    evaluated, losses = sink.series(names.EVAL_LOSS)
    return run, MemorySource(_scalars(sink), rows, (evaluated.tolist(), losses[:, 0].tolist()))


def _scalars(sink: MemorySink) -> Scalars:
    step = sink.series(names.TRAIN_LOSS)[0]
    recorded = {field: name for field, name in SERIES_OF.items() if name in sink.catalogue}  # classes have no magnitudes
    return Scalars(step=step, **{field: _aligned(step, *sink.series(name)) for field, name in recorded.items()})


def _aligned(step: np.ndarray, own: np.ndarray, values: np.ndarray) -> np.ndarray:
    found = np.full(len(step), np.nan)
    where = {int(s): float(v) for s, v in zip(own, values[:, 0], strict=True)}
    for i, s in enumerate(step):
        found[i] = where.get(int(s), np.nan)
    return found


def _rows(sink: MemorySink, index: int, width: int, form: Form | None) -> Rows:
    def of(kind: str) -> np.ndarray:
        return sink.series(names.layer_series(index, kind))[1].astype(np.float64)

    step = sink.series(names.layer_series(index, "weight"))[0]
    kinds = list(form.recorded if form else ("weight",))
    if names.layer_series(index, "grad_over_weight") in sink.catalogue:
        kinds.append("grad_over_weight")
    recorded = spread({kind: of(kind) for kind in kinds}, width)
    if form is None:
        return Rows(step=step, distance=np.full_like(recorded["weight"], np.nan))
    return Rows.derived(form, step, recorded)
