"""Reads runs through the client: how they ended, their alerts, and the largest value of each signal before they died."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from stablessm_core.client import Client
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.stability import (
    budget_limit,
    gradient_size,
    loss_over_best,
    overflow_budget,
    predicted_distance,
    predicted_weight_step,
)

ACTING = ("overflow_near", "training_explodes")
SIGNALS = ("budget", "predicted budget", "loss over best", "largest |grad|/|w|")


@dataclass(frozen=True)
class Record:
    """One run. alerts: (kind, severity, step). signals: the largest value of each signal before the fatal step. Overflow
    budgets are divided by their limit."""

    id: int
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


def read(client: Client, sweeps: set[str]) -> list[Record]:
    """One record for every run in the sweeps with these names."""
    ids = [sweep["id"] for sweep in client.sweeps() if sweep["name"] in sweeps]
    runs = [run for sweep in ids for run in client.sweep(sweep)["runs"]]
    runs = [run for run in runs if run["status"] != "cancelled" or "on_warning" in run["status_reason"]]
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(lambda run: _record(client, run["id"]), runs))


def _record(client: Client, run_id: int) -> Record:
    run = client.run(run_id)
    config = run["config"]
    acts = config["train"]["on_warning"]
    return Record(
        id=run_id,
        variant=config["tags"][0],
        optimizer=config["tags"][1],
        map=config["model"]["reparameterization"]["name"],
        lr=config["optimizer"]["lr"],
        seed=config["train"]["seed"],
        on_warning=acts,
        status=run["status"],
        steps=run["step"],
        fatal=(run["divergence"] or {}).get("tensor"),
        alerts=[(a["kind"], a["severity"], a["step"]) for a in client.alerts(run_id)],
        signals=_signals(client, run) if acts == "continue" else {},
    )


def _signals(client: Client, run: dict[str, Any]) -> dict[str, float]:
    config, died = run["config"], run["status"] == "diverged"
    last = None if not died else -1  # a signal in the fatal row comes too late to warn

    def of(name: str) -> np.ndarray:
        value = client.series(run["id"], name).value
        assert value is not None
        return value[:last].astype(np.float64)

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
