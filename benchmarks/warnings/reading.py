"""Trains a run in this process, and keeps how it ended, its alerts, and the largest value of each signal before it died."""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import NO_MAP, Form, spread
from stablessm_core.telemetry.sink import MemorySink
from stablessm_core.telemetry.stability import (
    budget_limit,
    gradient_size,
    loss_over_best,
    overflow_budget,
    predicted_distance,
    predicted_weight_step,
)
from stablessm_core.training.train import train

ACTING = ("overflow_near", "training_explodes")
LAYERS = "every layer"  # the variant of the healthy runs of every layer
SIGNALS = ("budget", "predicted budget", "loss over best", "largest |grad|/|w|")


@dataclass(frozen=True)
class Record:
    """One run. alerts: (kind, severity, step). signals: the largest value of each signal before the fatal step. Overflow
    budgets are divided by their limit. healthy: the run finished, its loss did not end above its start (medians of 10 steps), and
    no eigenvalue ended outside the boundary."""

    layer: str
    variant: str
    optimizer: str
    map: str
    lr: float
    seed: int
    on_warning: str
    status: str
    steps: int
    fatal: str | None
    alerts: list[tuple[str, str, int]]
    signals: dict[str, float]
    healthy: bool = False

    @property
    def died(self) -> bool:
        return self.status == "diverged"

    @property
    def cell(self) -> tuple[str, str, str, float, int]:
        return self.variant, self.optimizer, self.map, self.lr, self.seed

    @property
    def warned(self) -> list[int]:
        """Steps of the critical alerts that warn before values become non-finite."""
        return [step for kind, severity, step in self.alerts if kind in ACTING and severity == "critical"]

    def data(self) -> dict[str, Any]:
        return asdict(self)


def measure(config: dict[str, Any]) -> Record:
    """Train a run with this configuration and a single thread."""
    torch.set_num_threads(1)
    sink = MemorySink()
    with tempfile.TemporaryDirectory() as folder:
        checked = parse_config(config)
        outcome = train(checked, sink=sink, data_root=Path(), checkpoint_dir=Path(folder))
    full = checked.model_dump(mode="json")
    acts = full["train"]["on_warning"]
    loss = sink.series(names.TRAIN_LOSS)[1][:, 0]
    layer = full["model"]["layer"]
    return Record(
        layer=layer if isinstance(layer, str) else layer["name"],
        variant=full["tags"][0],
        optimizer=full["tags"][1],
        map=full["model"]["reparameterization"]["name"],
        lr=full["optimizer"]["lr"],
        seed=full["train"]["seed"],
        on_warning=acts,
        status=outcome.status,
        steps=outcome.step,
        fatal=(outcome.divergence or {}).get("tensor"),
        alerts=[(a.kind, a.severity, a.step) for a in sink.alerts],
        signals=_signals(full, sink, died=outcome.status == "diverged")
        if acts == "continue" and full["tags"][0] != LAYERS
        else {},
        healthy=outcome.status == "finished" and bool(np.median(loss[-10:]) <= np.median(loss[:10])) and _inside(sink),
    )


def _inside(sink: MemorySink) -> bool:
    """Whether no eigenvalue with a recorded weight is outside the boundary in the last row."""
    for series in sink.catalogue.values():
        if series.form is None or not series.name.endswith("/weight"):
            continue
        form, prefix = Form(**series.form), series.name.removesuffix("weight")
        if form.map in NO_MAP or not form.bounded:
            continue
        recorded = {kind: sink.series(prefix + kind)[1][-1:] for kind in form.inputs}
        distance = form.derive("boundary_distance", spread(recorded, series.width, axis=1))
        if (distance < 0).any():
            return False
    return True


def _signals(config: dict[str, Any], sink: MemorySink, *, died: bool) -> dict[str, float]:
    last = None if not died else -1  # a signal in the fatal row comes too late to warn

    def of(name: str) -> np.ndarray:
        values = sink.series(name)[1][:last].astype(np.float64)
        return values[:, 0] if values.shape[1] == 1 else values

    layers = range(config["model"]["n_layers"])
    ratio = [of(names.layer_series(layer, "grad_over_weight")) for layer in layers]
    found = {"loss over best": _largest(loss_over_best(of(names.TRAIN_LOSS))[0]), "largest |grad|/|w|": _largest(*ratio)}
    if config["model"]["reparameterization"]["name"] != "direct":
        return found  # only `direct` allows unstable eigenvalues; for other maps the overflow budget never exceeds 0
    length = config["task"]["length"] + (2 if config["task"]["name"] == "associative_recall" else 0)
    form, optimizer, limit = Form.of_map("direct", "discrete"), config["optimizer"], budget_limit(config["model"]["activation"])
    rate, norm = of(names.LR)[:, None], of(names.GRAD_NORM)[:, None]
    left = np.minimum(1.0, (optimizer["grad_clip"] or np.inf) / norm)
    now, ahead = [], []
    for layer in layers:
        w = of(names.layer_series(layer, "weight"))
        before = np.abs(np.diff(w, axis=0, prepend=w[:1]))
        momentum = optimizer["momentum"] if optimizer["name"] == "sgd" else 0.0
        step = predicted_weight_step(optimizer["name"], 1.0, gradient_size(ratio[layer], w) * left * rate, momentum, before)
        if optimizer["name"] == "adamw":
            step = np.broadcast_to(rate, w.shape)
        now.append(overflow_budget(length, form.derive("boundary_distance", {"weight": w})) / limit)
        ahead.append(overflow_budget(length, predicted_distance(form, {"weight": w}, step)) / limit)
    return found | {"budget": _largest(*now), "predicted budget": _largest(*ahead)}


def _largest(*values: np.ndarray) -> float:
    finite = [float(v[np.isfinite(v)].max()) for v in values if np.isfinite(v).any()]
    return max(finite, default=0.0)
