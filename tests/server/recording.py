"""Writes known numbers of a run into a database without a trainer, and keeps them for comparison."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from server.database.connection import Database
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.forms import DERIVED, Form
from stablessm_core.telemetry.series import SCALARS, TRAIN_LOSS, SeriesSpec, layer_catalogue, layer_group, scalar
from tests.server.storing import store_catalogue, store_flush

CPU = {"devices": ["cpu"], "data": {"digits": "ok"}}
WEIRD = np.array([0x7FC00001, 0xFFC12345, 0x7F800000, 0xFF800000, 0x80000000], np.uint32).view(np.float32)  # NaNs, infs, -0.0


def config(**changes: Any) -> RunConfig:
    """The configuration of a small run; changes are given by path, with __ for the dot."""
    data: dict[str, Any] = {"task": {"name": "polynomial_memory"}}
    for path, value in changes.items():
        *parents, last = path.split("__")
        place = data
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return parse_config(data)


def submitted(database: Database, **changes: Any) -> int:
    with database.write() as session:
        return lifecycle.submit(session, config(**changes)).id


def claimed(database: Database, **changes: Any) -> lifecycle.Claim:
    """Submit and claim a run of this configuration. No other run may be queued."""
    submitted(database, **changes)
    return claim(database)


def claim(database: Database, owner: str = "tester", capabilities: dict[str, Any] = CPU) -> lifecycle.Claim:
    with database.write() as session:
        claim = lifecycle.claim(session, owner, capabilities)
    assert claim is not None
    return claim


def run_of(database: Database, run_id: int) -> Run:
    with database.read() as session:
        run = session.get(Run, run_id)
    assert run is not None
    return run


def nonfinite(kind: str = "nonfinite_loss", step: int = 3, **fields: Any) -> Alert:
    values = {
        "severity": "critical",
        "series": TRAIN_LOSS,
        "layer": None,
        "eigenvalue": None,
        "tensor": "",
        "value": float("nan"),
    }
    return Alert(kind=kind, step=step, message="it is NaN", **(values | fields))  # type: ignore[arg-type]


@dataclass
class Recording:
    """Writes layer groups and the loss of a claimed run as the recorder does; `truth`: the values that a reader must find."""

    database: Database
    claim: lifecycle.Claim
    width: int = 4
    layers: int = 1
    every: int = 1
    first: int = 1  # first recorded step
    weird: bool = True
    seed: int = 0
    truth: dict[str, np.ndarray] = field(default_factory=dict)  # series -> (points, width) as written
    _levels: dict[str, LevelBuilder] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.map = self.claim.config["model"]["reparameterization"]
        self.form = Form.of_map(self.map["name"], self.map["time"], a=self.map["a"], b=self.map["b"])
        self.next = self.first
        with self.database.write() as session:
            store_catalogue(session, self.claim.run_id, self.claim.attempt, self.catalogue)

    @property
    def catalogue(self) -> list[SeriesSpec]:
        layers = [s for layer in range(self.layers) for s in layer_catalogue(layer, self.width, self.form)]
        return [scalar(TRAIN_LOSS), *layers]

    @property
    def steps(self) -> np.ndarray:
        return self.first + self.every * np.arange(len(self.truth[TRAIN_LOSS]))

    def write(self, points: int, alerts: Iterable[Alert] = ()) -> list[Block]:
        """Write one flush of `points` recorded steps and return its blocks."""
        flush = self._group(SCALARS, [TRAIN_LOSS], self.rng.standard_normal((1, points)))
        for layer in range(self.layers):
            group = layer_group(layer)
            weight = self.rng.standard_normal((self.width, points)) * 2
            recorded = [np.exp(self.rng.standard_normal((self.width, points))), weight]
            if self.map["time"] == "continuous":
                recorded.append(np.exp(self.rng.standard_normal((self.width, points)) - 3))
            kinds = ["grad_over_weight", "weight", "dt"][: len(recorded)]
            flush += self._group(group, [f"{group}/{kind}" for kind in kinds], np.concatenate(recorded))
        step = self.next + (points - 1) * self.every
        with self.database.write() as session:
            store_flush(session, self.claim.run_id, self.claim.attempt, flush, list(alerts), step, 100.0)
        self.next = step + self.every
        return flush

    def cut(self, from_step: int) -> None:
        """Drop everything from `from_step` on, and continue recording there."""
        kept = int((self.steps < from_step).sum())
        self.truth = {name: values[:kept] for name, values in self.truth.items()}
        self.next, self._levels = from_step, {}

    def _group(self, group: str, names: list[str], numbers: np.ndarray) -> list[Block]:
        values = numbers.astype(np.float32)
        if self.weird and values.size > 40:
            at = self.rng.integers(0, values.size, 6)
            values.reshape(-1)[at] = self.rng.choice(WEIRD, 6)
        width = len(values) // len(names)
        parts = {name: values[i * width : (i + 1) * width] for i, name in enumerate(names)}
        derived = self._derive(group, parts) if group != SCALARS else {}
        for name, part in (parts | derived).items():
            self.truth[name] = np.concatenate([self.truth.get(name, np.empty((0, width), part.dtype)), part.T])
        raw = Block(group, 0, self.next, self.every, values)
        builder = self._levels.setdefault(group, LevelBuilder(group, self.every))
        with np.errstate(over="ignore"):
            coarse = np.concatenate([values, *(d.astype(np.float32) for d in derived.values())])
        return [raw, *builder.feed(self.next, coarse)]

    def _derive(self, group: str, parts: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        recorded = {kind: parts[f"{group}/{kind}"].astype(np.float64) for kind in self.form.inputs}
        return {f"{group}/{kind}": self.form.derive(kind, recorded) for kind in DERIVED}
