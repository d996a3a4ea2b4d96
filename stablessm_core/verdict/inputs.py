"""The inputs of a verdict: a run as its database row describes it, and a source of its recorded numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from stablessm_core.telemetry.boundary import overflow_distance
from stablessm_core.telemetry.detectors.registry import KINDS
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.how import How, how_of_config
from stablessm_core.telemetry.stability import layer_limits

BOUNDED_STEPS = frozenset(("adamw", "adam", "adamax", "nadam", "radam", "lion"))


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Recorded rows of one layer: step (n,) int64, everything else (n, columns) float64.

    distance: 1 - |lambda_bar|; of the channel that decides on overflow, if each channel has a step size of its own
    (`telemetry.boundary.overflow_distance`). eigenvalue, weight: None if they are not recorded (wide layers). ratio: |grad| /
    |w|. dt: only in continuous time. at: the index of the eigenvalue of each entry of `distance`, if the eigenvalues change
    from row to row. If `at` is None, column i belongs to eigenvalue i.
    """

    step: np.ndarray
    distance: np.ndarray
    eigenvalue: np.ndarray | None = None
    weight: np.ndarray | None = None
    ratio: np.ndarray | None = None
    dt: np.ndarray | None = None
    at: np.ndarray | None = None
    recorded: Mapping[str, np.ndarray] | None = None  # the columns from which the distances are computed

    @classmethod
    def derived(cls, form: Form, step: np.ndarray, recorded: Mapping[str, np.ndarray]) -> Rows:
        """Rows from a layer's recorded columns by kind: "weight", "grad_over_weight", and "dt" if the layer has step sizes."""
        values = {kind: np.asarray(numbers, np.float64) for kind, numbers in recorded.items()}
        if form.map == "none":
            return cls(
                step=step, distance=np.empty((len(step), 0)), weight=values["weight"], ratio=values.get("grad_over_weight")
            )
        distance = overflow_distance(form, values)
        return cls(
            step=step,
            distance=distance,
            eigenvalue=1 - distance if form.channels else form.derive("eigenvalue", values),
            weight=values["weight"],
            ratio=values.get("grad_over_weight"),
            dt=values.get("dt"),
            recorded={kind: values[kind] for kind in form.recorded},
        )

    def __len__(self) -> int:
        return len(self.step)

    def worst(self, row: int) -> tuple[int, float] | None:
        """(eigenvalue, distance) of the eigenvalue that is nearest to the boundary, or furthest outside it, in this row. None
        if no distance is known."""
        distance = self.distance[row]
        if np.isnan(distance).all():
            return None
        column = int(np.nanargmin(distance))
        return self.eigenvalue_at(row, column), float(distance[column])

    def eigenvalue_at(self, row: int, column: int) -> int:
        return column if self.at is None else int(self.at[row, column])

    def distance_of(self, eigenvalue: int) -> np.ndarray:
        """The distance of one eigenvalue, (n,); NaN in rows that do not contain the eigenvalue."""
        if self.at is None:
            return self.distance[:, eigenvalue]
        found = np.where(self.at == eigenvalue, self.distance, np.nan)
        return np.where(np.isnan(found).all(axis=1), np.nan, np.nanmin(np.where(np.isnan(found), np.inf, found), axis=1))


@dataclass(frozen=True, kw_only=True)
class Scalars:
    """Recorded rows of the run's scalars, each (n,). Optional columns are None if the run did not record them.

    largest_input, largest_target: the largest absolute value in the batch's input and target. NaN where the batch holds NaN, and
    where the run did not record it, as for tokens and classes.
    """

    step: np.ndarray
    loss: np.ndarray
    grad_norm: np.ndarray
    lr: np.ndarray
    weight_norm: np.ndarray | None = None
    batch: np.ndarray | None = None  # codes: 0 finite batch, 1 non-finite input, 2 non-finite target, 3 both, NaN no row
    largest_input: np.ndarray | None = None
    largest_target: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.step)


@dataclass(frozen=True)
class Layer:
    """A layer whose values are recorded. form: None if this version does not know the form. wide: True if only the extremes are
    recorded. reservation: what statements about its eigenvalues take for granted, a value of
    `telemetry.assumptions.RESERVATIONS`; None if nothing."""

    index: int
    width: int
    form: Form | None
    wide: bool = False
    reservation: str | None = None

    @property
    def may_exceed(self) -> bool:
        """True if eigenvalues outside the boundary are meant, as in DSS with softmax, and cannot make a state overflow."""
        return self.form is not None and not self.form.bounded

    @property
    def continuous(self) -> bool:
        return self.form is not None and self.form.time == "continuous"


class Source(Protocol):
    """The recorded values of one run. Ranges of steps include both ends, and rows are sorted by step."""

    def scalars(self, low: int, high: int) -> Scalars: ...

    def best_loss(self, before: int) -> tuple[int, float] | None:
        """The step and the value of the smallest finite loss that was recorded before this step. In a long run, the step is
        approximate."""

    def largest_loss(self, before: int) -> float | None:
        """The largest finite loss recorded before this step."""

    def evaluations(self) -> tuple[np.ndarray, np.ndarray]:
        """The steps and the losses of the recorded evaluations, both (n,)."""

    def layer(self, index: int, low: int, high: int) -> Rows: ...

    def first_outside(self, index: int, eigenvalue: int | None = None) -> int | None:
        """The first recorded step at which this eigenvalue of the layer was outside the boundary. If `eigenvalue` is None, the
        first step at which any eigenvalue of the layer was outside."""

    def steps_outside(self, index: int, to_step: int) -> tuple[int, int]:
        """A lower and an upper bound for the number of recorded steps up to `to_step` at which an eigenvalue of the layer was
        outside the boundary."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run as its database row describes it. alerts: dictionaries with kind, step, layer, eigenvalue, tensor, value,
    message."""

    status: str
    step: int
    config: Mapping[str, Any]
    reason: str = ""
    environment: Mapping[str, Any] | None = None
    divergence: Mapping[str, Any] | None = None
    alerts: Sequence[Mapping[str, Any]] = ()
    layers: Sequence[Layer] = field(default_factory=tuple)
    first_step: int = 1  # the first trained step; for a fork, the step after the checkpoint from which it started
    autopsy: Mapping[str, Any] | None = None  # the findings of the run's autopsy; None without one
    complete_from: int | None = None  # the step from which the autopsy's replay fills the gaps between recorded steps
    reported: How | None = None  # how a reported run trains; None: we trained the run, and `config` says how
    paths: Sequence[str] = ()  # the paths of a reported run's layers in its model, by the layer's number

    @cached_property
    def how(self) -> How:
        return how_of_config(self.config) if self.reported is None else self.reported

    @property
    def optimizer(self) -> str:
        """The name of the optimizer in small letters; empty if it is unknown."""
        return self.how.optimizer or ""

    @property
    def bounded_steps(self) -> bool:
        """Whether the optimizer divides each gradient by its usual size, so that its steps do not grow with the gradient."""
        return self.optimizer in BOUNDED_STEPS

    @property
    def momentum(self) -> float:
        return self.how.momentum or 0.0

    @property
    def lr(self) -> float:
        """The configured learning rate; NaN if it is unknown."""
        return float(self._configured("lr", math.nan))

    @property
    def recurrent_lr(self) -> float:
        """The learning rate of the eigenvalue weights."""
        own = self._configured("recurrent_lr", None)
        return float(own or self.lr)

    @property
    def recurrent_ratio(self) -> float | None:
        """The learning rate of the eigenvalue weights divided by the common one. The ratio is constant, and only the common
        rate is recorded. None if it is unknown."""
        if self.reported is not None:
            return None
        own = self._configured("recurrent_lr", None)
        return 1.0 if own is None or self.lr == 0 else float(own) / self.lr

    @property
    def weight_decay(self) -> float | None:
        """The weight decay of the common weights; None if it is unknown."""
        return None if self.reported is not None else float(self._configured("weight_decay", 0.0) or 0.0)

    @property
    def recurrent_weight_decay(self) -> float | None:
        """The weight decay of the eigenvalue weights; None if it is unknown."""
        return None if self.reported is not None else float(self._configured("recurrent_weight_decay", 0.0) or 0.0)

    @property
    def grad_clip(self) -> float | None:
        return self.how.grad_clip

    def _configured(self, name: str, otherwise: Any) -> Any:
        """A setting of the optimizer. The configuration of a reported run is never read: its names are another program's."""
        if self.reported is not None:
            return otherwise
        return self.config["optimizer"].get(name, otherwise)

    @property
    def optimizer_label(self) -> str:
        """The name of the optimizer in texts."""
        return {"adamw": "AdamW", "sgd": "SGD"}.get(self.optimizer, self.optimizer)

    @property
    def every(self) -> int:
        """Every how many steps have a row, from the trouble on; 1 if the autopsy's replay fills the gaps."""
        return 1 if self.complete_from is not None else self.recorded_every

    @property
    def recorded_every(self) -> int:
        return self.how.every or 1

    @property
    def length(self) -> int | None:
        """The sequence length of the training data; before training, the sequence length in the configuration."""
        data = (self.environment or {}).get("data") or {}
        length = data.get("length") or self.how.length
        return None if length is None else int(length)

    def limit_of(self, layer: int) -> float:
        """The overflow budget at which numbers overflow because of this layer: 1 if a bounded activation follows its states."""
        if self.reported is not None:
            return 1.0  # what follows the states is unknown
        data = (self.environment or {}).get("data") or {}
        limits = layer_limits(self.config["model"], data.get("kind"))
        return limits[layer] if layer < len(limits) else min(limits)

    @property
    def squares(self) -> str:
        """What squares the states of a layer whose limit is below 1, as text."""
        return "the loss" if self.config["model"].get("block") == "bare" else "the normalisation that follows"

    @property
    def eigenvalues(self) -> int:
        return sum(layer.width for layer in self.layers)

    def reserved(self, kind: str) -> list[Layer]:
        """The layers whose eigenvalues take this for granted: "assumed", "decay" or "diagonal"."""
        return [layer for layer in self.layers if layer.reservation == kind]

    def is_assumed(self, layer: int) -> bool:
        """True if only the names of its parameters suggest the map of this layer."""
        return any(one.index == layer for one in self.reserved("assumed"))

    @property
    def fatal(self) -> dict[str, Any] | None:
        """Where a value first became NaN or infinite: step, layer, eigenvalue, tensor, value. None if all values are finite."""
        if self.divergence and isinstance(self.divergence.get("step"), int):
            places = {name: _index(self.divergence.get(name)) for name in ("layer", "eigenvalue")}
            return dict(self.divergence) | places
        if self.reported is not None:
            return min(self.nonfinite_alerts, key=lambda alert: int(alert["step"]), default=None)
        if self.config.get("train", {}).get("on_nonfinite") != "continue":
            return None
        return next(iter(self.nonfinite_alerts), None)

    @property
    def nonfinite_alerts(self) -> list[dict[str, Any]]:
        """The alerts about numbers that were not finite."""
        return [dict(alert) for alert in self.alerts if (kind := KINDS.get(alert["kind"])) and kind.nonfinite]


def _index(value: Any) -> int | None:
    """A layer or an eigenvalue as another program reported it; None if it is no index."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
