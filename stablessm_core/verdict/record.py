"""What a verdict is made from: a run as its row describes it, and a source that gives recorded numbers when asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from stablessm_core.forms import Form
from stablessm_core.maps import MAPS
from stablessm_core.stability import model_limit
from stablessm_core.telemetry.detectors.registry import KINDS

FINAL = ("finished", "failed", "diverged", "cancelled")


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Recorded rows of one layer: step (n,) int64, everything else (n, columns) float64.

    distance: 1 - |lambda_bar|. eigenvalue, weight: None where they are not recorded (wide layers). ratio: |grad| / |w|. dt: in
    continuous time only. at: which eigenvalue each column of `distance` belongs to, where that changes from row to row; None:
    the column is the eigenvalue.
    """

    step: np.ndarray
    distance: np.ndarray
    eigenvalue: np.ndarray | None = None
    weight: np.ndarray | None = None
    ratio: np.ndarray | None = None
    dt: np.ndarray | None = None
    at: np.ndarray | None = None
    recorded: Mapping[str, np.ndarray] | None = None  # what the distances follow from

    @classmethod
    def derived(cls, form: Form, step: np.ndarray, recorded: Mapping[str, np.ndarray]) -> Rows:
        """Rows from a layer's recorded columns, by kind: "weight", "grad_over_weight" and, where it has one, "dt"."""
        values = {kind: np.asarray(numbers, np.float64) for kind, numbers in recorded.items()}
        if form.map == "none":
            return cls(
                step=step, distance=np.empty((len(step), 0)), weight=values["weight"], ratio=values.get("grad_over_weight")
            )
        of = {kind: form.derive(kind, values) for kind in ("eigenvalue", "boundary_distance")}
        return cls(
            step=step,
            distance=of["boundary_distance"],
            eigenvalue=of["eigenvalue"],
            weight=values["weight"],
            ratio=values.get("grad_over_weight"),
            dt=values.get("dt"),
            recorded={kind: values[kind] for kind in form.recorded},
        )

    def __len__(self) -> int:
        return len(self.step)

    def worst(self, row: int) -> tuple[int, float] | None:
        """Eigenvalue and distance of the column nearest to the boundary, or furthest outside; None where none is known."""
        distance = self.distance[row]
        if np.isnan(distance).all():
            return None
        column = int(np.nanargmin(distance))
        return self.name(row, column), float(distance[column])

    def name(self, row: int, column: int) -> int:
        return column if self.at is None else int(self.at[row, column])

    def distance_of(self, eigenvalue: int) -> np.ndarray:
        """(n,): NaN in rows that do not hold it."""
        if self.at is None:
            return self.distance[:, eigenvalue]
        found = np.where(self.at == eigenvalue, self.distance, np.nan)
        return np.where(np.isnan(found).all(axis=1), np.nan, np.nanmin(np.where(np.isnan(found), np.inf, found), axis=1))


@dataclass(frozen=True, kw_only=True)
class Scalars:
    """Recorded rows of the run's scalars, all (n,). weight_norm, batch: None in runs that did not record them."""

    step: np.ndarray
    loss: np.ndarray
    grad_norm: np.ndarray
    lr: np.ndarray
    weight_norm: np.ndarray | None = None
    batch: np.ndarray | None = None  # 0 finite, 1 the input not, 2 the target not, 3 neither; NaN: no row of that step

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Layer:
    """A layer whose numbers are recorded. form: None where this version does not know it. wide: only its extremes are kept."""

    index: int
    width: int
    form: Form | None
    wide: bool = False

    @property
    def can_cross(self) -> bool:
        """Whether its map lets an eigenvalue leave the boundary at all."""
        if self.form is not None and (self.form.map in ("fixed", "none") or not self.form.bounded):
            return False
        return self.form is None or not (self.form.map in MAPS and MAPS[self.form.map].guarded)

    @property
    def continuous(self) -> bool:
        return self.form is not None and self.form.time == "continuous"


class Source(Protocol):
    """Recorded numbers of one run. Steps are inclusive; rows come in order."""

    def scalars(self, low: int, high: int) -> Scalars: ...

    def best_loss(self, before: int) -> tuple[int, float] | None:
        """Step (roughly, in a long run) and value of the smallest finite loss recorded before this step."""

    def largest_loss(self, before: int) -> float | None:
        """The largest finite loss recorded before this step."""

    def layer(self, index: int, low: int, high: int) -> Rows: ...

    def first_outside(self, index: int, eigenvalue: int | None = None) -> int | None:
        """The first recorded step at which this eigenvalue of the layer, or any of them, was outside the boundary."""

    def steps_outside(self, index: int, to_step: int) -> tuple[int, int]:
        """Of how many recorded steps up to this one some eigenvalue of the layer was outside: at least, at most."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as its row describes it. alerts: kind, step, layer, eigenvalue, tensor, value, message of each, as plain data."""

    status: str
    step: int
    config: Mapping[str, Any]
    reason: str = ""
    environment: Mapping[str, Any] | None = None
    divergence: Mapping[str, Any] | None = None
    alerts: Sequence[Mapping[str, Any]] = ()
    layers: Sequence[Layer] = field(default_factory=tuple)
    first_step: int = 1  # the first it trained: of a fork the one after its checkpoint

    @property
    def optimizer(self) -> str:
        return str(self.config["optimizer"].get("name", "adamw"))

    @property
    def momentum(self) -> float:
        return float(self.config["optimizer"].get("momentum") or 0.0)

    @property
    def every(self) -> int:
        return int(self.config.get("telemetry", {}).get("every", 1))

    @property
    def length(self) -> int | None:
        """Steps of a sequence, as trained; before training, as configured."""
        data = (self.environment or {}).get("data") or {}
        length = data.get("length") or self.config["task"].get("length")
        return None if length is None else int(length)

    @property
    def limit(self) -> float:
        """The overflow budget at which float32 overflows."""
        return model_limit(self.config["model"])

    @property
    def eigenvalues(self) -> int:
        return sum(layer.width for layer in self.layers)

    @property
    def fatal(self) -> dict[str, Any] | None:
        """Where numbers stopped being finite: step, layer, eigenvalue, tensor, value. None where they did not."""
        if self.divergence:
            return dict(self.divergence)
        if self.config.get("train", {}).get("on_nonfinite") != "continue":
            return None
        return next((dict(alert) for alert in self.alerts if (kind := KINDS.get(alert["kind"])) and kind.nonfinite), None)
