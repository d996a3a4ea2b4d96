"""The rows that detectors read: the numbers of consecutive training steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from stablessm_core.forms import Form


@dataclass(frozen=True)
class Values:
    """Numbers of a layer's eigenvalues, (rows, columns).

    `at` has the same shape and says which eigenvalue each number belongs to; without it the column is the eigenvalue.
    """

    values: np.ndarray
    at: np.ndarray | None = None

    @cached_property
    def least(self) -> Any:
        """The smallest number, NaN where one is NaN, infinite where there is none: most detectors need no second look."""
        return self.values.min(initial=np.inf)

    @cached_property
    def largest(self) -> Any:
        """The largest number, NaN where one is NaN, minus infinite where there is none."""
        return self.values.max(initial=-np.inf)

    def eigenvalue(self, row: int, column: int) -> int:
        return column if self.at is None else int(self.at[row, column])

    def cut(self, count: int) -> Values:
        return Values(self.values[:count], None if self.at is None else self.at[:count])


@dataclass(frozen=True)
class LayerRows:
    """One record of a layer in consecutive training steps. `path` is its weight's name in the model.

    `weight` and `distance` have the same columns; `ratio`, `distance` or `state` have none where the record has no such thing.
    `form` and `recorded`: how distances follow from what was recorded, the form's inputs, (rows, eigenvalues); None where only
    extremes were. `record`: its name, "" for the layer's own eigenvalues.
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

    @cached_property
    def id(self) -> str:
        """What its series are called by, and what a detector remembers it by."""
        return f"{self.layer}.{self.record}" if self.record else str(self.layer)

    def cut(self, count: int) -> LayerRows:
        ratio, weight, distance, state = (v.cut(count) for v in (self.ratio, self.weight, self.distance, self.state))
        recorded = None if self.recorded is None else {kind: values[:count] for kind, values in self.recorded.items()}
        return LayerRows(self.layer, self.path, ratio, weight, distance, state, self.form, recorded, self.record)


@dataclass(frozen=True)
class Rows:
    """Consecutive training steps from `first_step` on.

    `norms` is (rows, 2 x parameters): the norms of all weights, then those of all gradients. `batch`, (rows,), says what of the
    batch was not finite, as the series does; `lr` and `grad_norm`, (rows,), are the learning rate and the gradient's global norm
    before clipping. None: not recorded.
    """

    first_step: int
    loss: np.ndarray
    norms: np.ndarray
    layers: list[LayerRows]
    batch: np.ndarray | None = None
    lr: np.ndarray | None = None
    grad_norm: np.ndarray | None = None

    @property
    def finite_batch(self) -> np.ndarray:
        """(rows,): what is not finite in such a row is not the data's doing."""
        return np.ones(len(self.loss), bool) if self.batch is None else self.batch == 0

    @property
    def weight_norms(self) -> np.ndarray:
        return self.norms[:, : self.norms.shape[1] // 2]

    @property
    def gradient_norms(self) -> np.ndarray:
        return self.norms[:, self.norms.shape[1] // 2 :]

    def cut(self, count: int) -> Rows:
        """The first `count` rows."""
        layers = [layer.cut(count) for layer in self.layers]
        batch, lr, grad_norm = (None if v is None else v[:count] for v in (self.batch, self.lr, self.grad_norm))
        return Rows(self.first_step, self.loss[:count], self.norms[:count], layers, batch, lr, grad_norm)
