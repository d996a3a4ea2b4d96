"""The rows that detectors read: the numbers of consecutive training steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from stablessm_core.telemetry.boundary import overflow_distance
from stablessm_core.telemetry.forms import Form


def steps_held(holds: np.ndarray, before: np.ndarray) -> np.ndarray:
    """For how many steps a condition has held without a break, in the shape of `holds` (rows, ...); 0 where it does not hold.
    before: this number for the step before the first row."""
    row = np.arange(len(holds)).reshape(-1, *[1] * (holds.ndim - 1))
    last_broken = np.maximum.accumulate(np.where(holds, -1, row), axis=0)
    steps: np.ndarray = np.where(last_broken >= 0, row - last_broken, row + 1 + before)
    return steps


@dataclass(frozen=True)
class Values:
    """Values recorded for a layer's eigenvalues, (rows, columns).

    at: the index of each value's eigenvalue, in the same shape; None if column i belongs to eigenvalue i.
    """

    values: np.ndarray
    at: np.ndarray | None = None

    @cached_property
    def least(self) -> Any:
        """The smallest value; NaN if any value is NaN, infinity if there are no values. Most detectors need only this value."""
        return self.values.min(initial=np.inf)

    @cached_property
    def largest(self) -> Any:
        """The largest value; NaN if any value is NaN, minus infinity if there are no values."""
        return self.values.max(initial=-np.inf)

    def eigenvalue(self, row: int, column: int) -> int:
        return column if self.at is None else int(self.at[row, column])

    def cut(self, count: int) -> Values:
        return Values(self.values[:count], None if self.at is None else self.at[:count])


@dataclass(frozen=True)
class LayerRows:
    """One record of a layer in consecutive training steps.

    path: the weight's name in the model. ratio, distance and state have no columns if the record does not include them;
    otherwise distance has the same columns as weight. form, recorded: the form and its recorded inputs, (rows, eigenvalues);
    None if only extremes were recorded. record: the record's name, "" for the layer's own eigenvalues. paths: the names in the
    model of the other parameters that are recorded for each eigenvalue, by the kind in `recorded`. gradients: the gradients that
    are known for each eigenvalue, (rows, eigenvalues), by the kind of their parameter: "weight", "phase_weight" (divided by the
    parameter) and "dt" (of the logarithm). assumed: True if only the names of the parameters suggest the form.
    """

    layer: int
    path: str
    ratio: Values
    weight: Values
    distance: Values
    state: Values
    form: Form | None = None
    recorded: Mapping[str, np.ndarray] | None = None
    record: str = ""
    paths: Mapping[str, str] = field(default_factory=dict)
    gradients: Mapping[str, np.ndarray] = field(default_factory=dict)
    assumed: bool = False

    @cached_property
    def id(self) -> str:
        """The part of a series name that identifies the record, such as "0" or "0.dt_bias". Detectors use this id as a key."""
        return f"{self.layer}.{self.record}" if self.record else str(self.layer)

    @cached_property
    def overflow_distance(self) -> np.ndarray:
        """The distances that decide on overflow (`boundary.overflow_distance`), with the columns of `distance`."""
        if self.form is None or self.recorded is None or not self.form.channels:
            return self.distance.values
        return np.asarray(overflow_distance(self.form, self.recorded))

    def cut(self, count: int) -> LayerRows:
        ratio, weight, distance, state = (v.cut(count) for v in (self.ratio, self.weight, self.distance, self.state))
        recorded = None if self.recorded is None else {kind: values[:count] for kind, values in self.recorded.items()}
        gradients = {kind: values[:count] for kind, values in self.gradients.items()}
        return LayerRows(
            self.layer, self.path, ratio, weight, distance, state, self.form, recorded, self.record, self.paths, gradients
        )


@dataclass(frozen=True)
class Rows:
    """Consecutive recorded training steps from `first_step` on, `stride` steps apart.

    norms: the norms of all weights, then of all gradients, (rows, 2 x parameters). batch: which part of the batch was not
    finite, as the number that the series BATCH_NONFINITE stores, (rows,). lr, grad_norm, weight_norm: the learning rate, the
    gradient's global norm before clipping, and the global norm of all weights, (rows,). skipped, scale: not 0 if a gradient
    scaler skipped the update of the step, and the scaler's factor, (rows,). A field is None if it was not recorded.
    """

    first_step: int
    loss: np.ndarray
    norms: np.ndarray
    layers: list[LayerRows]
    batch: np.ndarray | None = None
    lr: np.ndarray | None = None
    grad_norm: np.ndarray | None = None
    weight_norm: np.ndarray | None = None
    skipped: np.ndarray | None = None
    scale: np.ndarray | None = None
    stride: int = field(default=1, kw_only=True)

    def step(self, row: int) -> int:
        """The step of a row."""
        return self.first_step + row * self.stride

    @property
    def finite_batch(self) -> np.ndarray:
        """True for each row whose batch was finite, (rows,). A non-finite number in such a row does not come from the data."""
        return np.ones(len(self.loss), bool) if self.batch is None else self.batch == 0

    @property
    def was_skipped(self) -> np.ndarray:
        """True for each row whose update a gradient scaler skipped: its loss and gradients were too large, and did no harm."""
        return np.zeros(len(self.loss), bool) if self.skipped is None else np.asarray(self.skipped != 0)

    @property
    def weight_norms(self) -> np.ndarray:
        return self.norms[:, : self.norms.shape[1] // 2]

    @property
    def gradient_norms(self) -> np.ndarray:
        return self.norms[:, self.norms.shape[1] // 2 :]

    def cut(self, count: int) -> Rows:
        """The first `count` rows."""
        layers = [layer.cut(count) for layer in self.layers]
        whole = (self.batch, self.lr, self.grad_norm, self.weight_norm, self.skipped, self.scale)
        return Rows(
            self.first_step,
            self.loss[:count],
            self.norms[:count],
            layers,
            *(None if v is None else v[:count] for v in whole),
            stride=self.stride,
        )
