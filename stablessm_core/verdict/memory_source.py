"""A Source with all recorded values of a run in memory, for a run trained with a MemorySink or a short run from the
database."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from stablessm_core.verdict.inputs import Rows, Scalars

Table = TypeVar("Table", Rows, Scalars)


@dataclass(frozen=True)
class MemorySource:
    """All recorded rows of a run: the rows of the scalars, and the rows of each layer by the layer's index. evaluated: the steps
    and the losses of the evaluations."""

    rows: Scalars
    layers: Mapping[int, Rows]
    evaluated: tuple[Sequence[int], Sequence[float]] = ((), ())

    def scalars(self, low: int, high: int) -> Scalars:
        return between(self.rows, low, high)

    def best_loss(self, before: int) -> tuple[int, float] | None:
        loss = self.rows.loss[self.rows.step < before]
        finite = np.where(np.isfinite(loss), loss, np.inf)
        if not len(finite) or np.isinf(finite).all():
            return None
        at = int(np.argmin(finite))
        return int(self.rows.step[at]), float(finite[at])

    def largest_loss(self, before: int) -> float | None:
        loss = self.rows.loss[(self.rows.step < before) & np.isfinite(self.rows.loss)]
        return float(loss.max()) if len(loss) else None

    def evaluations(self) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(self.evaluated[0], np.int64), np.asarray(self.evaluated[1], np.float64)

    def layer(self, index: int, low: int, high: int) -> Rows:
        return between(self.layers[index], low, high)

    def first_outside(self, index: int, eigenvalue: int | None = None) -> int | None:
        rows = self.layers[index]
        outside = (rows.distance < 0).any(axis=1) if eigenvalue is None else rows.distance_of(eigenvalue) < 0
        return int(rows.step[int(np.argmax(outside))]) if outside.any() else None

    def steps_outside(self, index: int, to_step: int) -> tuple[int, int]:
        rows = self.layers[index]
        count = int(((rows.distance < 0).any(axis=1) & (rows.step <= to_step)).sum())
        return count, count


def between(table: Table, low: int, high: int) -> Table:
    """The rows from step `low` to step `high`, both included."""
    chosen = slice(int(np.searchsorted(table.step, low)), int(np.searchsorted(table.step, high, side="right")))
    parts: dict[str, Any] = {field.name: getattr(table, field.name) for field in fields(table)}
    return replace(table, **{name: _chosen(part, chosen) for name, part in parts.items()})


def _chosen(part: Any, chosen: slice) -> Any:
    if isinstance(part, dict):
        return {kind: values[chosen] for kind, values in part.items()}
    return None if part is None else part[chosen]
