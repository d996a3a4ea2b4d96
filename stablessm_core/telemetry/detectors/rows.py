"""The rows that detectors read: the numbers of consecutive training steps."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Values:
    """Numbers of a layer's eigenvalues, (rows, columns).

    `at` has the same shape and says which eigenvalue each number belongs to; without it the column is the eigenvalue.
    """

    values: np.ndarray
    at: np.ndarray | None = None

    def eigenvalue(self, row: int, column: int) -> int:
        return column if self.at is None else int(self.at[row, column])

    def cut(self, count: int) -> Values:
        return Values(self.values[:count], None if self.at is None else self.at[:count])


@dataclass(frozen=True)
class LayerRows:
    """One layer in consecutive training steps. `path` is its weight's name in the model.

    `weight` and `distance` have the same columns.
    """

    layer: int
    path: str
    ratio: Values
    weight: Values
    distance: Values
    state: Values

    def cut(self, count: int) -> LayerRows:
        ratio, weight, distance, state = (v.cut(count) for v in (self.ratio, self.weight, self.distance, self.state))
        return LayerRows(self.layer, self.path, ratio, weight, distance, state)


@dataclass(frozen=True)
class Rows:
    """Consecutive training steps from `first_step` on.

    `norms` is (rows, 2 x parameters): the norms of all weights, then those of all gradients. `batch`, (rows,), says what of the
    batch was not finite, as the series does; None where that was not recorded.
    """

    first_step: int
    loss: np.ndarray
    norms: np.ndarray
    layers: list[LayerRows]
    batch: np.ndarray | None = None

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
        layers, batch = [layer.cut(count) for layer in self.layers], None if self.batch is None else self.batch[:count]
        return Rows(self.first_step, self.loss[:count], self.norms[:count], layers, batch)
