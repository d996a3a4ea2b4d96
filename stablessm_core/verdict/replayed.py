"""The recorded values of a run together with the steps that its autopsy replayed.

A run with `telemetry.every` above 1 recorded only some steps. Its autopsy trained all steps since the trouble again, with the
same bits, and measured the rows that the recorder would have written. With these rows the verdict sees every step.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stablessm_core.telemetry.forms import spread
from stablessm_core.verdict.inputs import Rows, Run, Scalars, Source
from stablessm_core.verdict.measured import number_of
from stablessm_core.verdict.memory_source import between

OPTIONAL = ("weight_norm", "batch", "largest_input", "largest_target")


def completed(run: Run, source: Source) -> tuple[Run, Source]:
    """The run and a source with the replayed rows; both unchanged if there are none, or if they begin after the trouble."""
    findings = run.autopsy or {}
    replayed = findings.get("replayed")
    if run.every == 1 or not replayed or not replayed["steps"] or isinstance(source, Completed):
        return run, source
    trouble = (findings.get("trouble") or {}).get("step", findings.get("step"))
    first = int(replayed["steps"][0])
    if trouble is None or first > int(trouble):
        return run, source
    steps = np.asarray(replayed["steps"], np.int64)
    layers = {}
    for one in replayed["layers"]:
        layer = next((layer for layer in run.layers if layer.index == one["layer"]), None)
        if layer is not None and not layer.wide and layer.form is not None and one["recorded"]:
            recorded = spread({kind: _numbers(values) for kind, values in one["recorded"].items()}, layer.width)
            layers[layer.index] = Rows.derived(layer.form, steps[-len(recorded["weight"]) :], recorded)
    if any(not layer.wide and layer.form is not None and layer.index not in layers for layer in run.layers):
        return run, source
    first = max([first, *(int(rows.step[0]) for rows in layers.values())])
    if first > int(trouble):
        return run, source
    return replace(run, complete_from=first), Completed(source, _scalars(replayed["scalars"], steps), layers)


def _numbers(values: Any) -> np.ndarray:
    return np.asarray([[number_of(x) for x in row] for row in values], np.float64)


def _scalars(values: Mapping[str, Any], steps: np.ndarray) -> Scalars:
    columns = {name: np.asarray([number_of(x) for x in numbers], np.float64) for name, numbers in values.items()}
    missing = np.full(len(steps), np.nan)
    always = {name: columns.get(name, missing) for name in ("loss", "grad_norm", "lr")}
    optional: dict[str, Any] = {name: columns.get(name) for name in OPTIONAL}
    return Scalars(step=steps, **always, **optional)


@dataclass(frozen=True)
class Completed:
    """A Source whose last rows come from the replay, step by step. Earlier rows are the recorded ones."""

    source: Source
    rows: Scalars
    layers: Mapping[int, Rows]

    def scalars(self, low: int, high: int) -> Scalars:
        first, last = int(self.rows.step[0]), int(self.rows.step[-1])
        parts = [self.source.scalars(low, min(high, first - 1))] if low < first else []
        parts.append(between(self.rows, low, high))
        if high > last:
            parts.append(self.source.scalars(last + 1, high))
        parts = [part for part in parts if len(part)] or parts[-1:]
        joined = {name: np.concatenate([getattr(part, name) for part in parts]) for name in ("step", "loss", "grad_norm", "lr")}
        optional: dict[str, Any] = {name: _joined(parts, name) for name in OPTIONAL}
        return Scalars(**joined, **optional)

    def best_loss(self, before: int) -> tuple[int, float] | None:
        recorded = self.source.best_loss(before)
        replayed = between(self.rows, 0, before - 1)
        finite = np.flatnonzero(np.isfinite(replayed.loss))
        if not len(finite):
            return recorded
        at = finite[int(np.argmin(replayed.loss[finite]))]
        own = int(replayed.step[at]), float(replayed.loss[at])
        return own if recorded is None else min(recorded, own, key=lambda one: one[1])

    def largest_loss(self, before: int) -> float | None:
        recorded = self.source.largest_loss(before)
        loss = between(self.rows, 0, before - 1).loss
        known = [float(loss[np.isfinite(loss)].max())] if np.isfinite(loss).any() else []
        return max(known + ([] if recorded is None else [recorded]), default=None)

    def evaluations(self) -> tuple[np.ndarray, np.ndarray]:
        return self.source.evaluations()

    def layer(self, index: int, low: int, high: int) -> Rows:
        own = self.layers.get(index)
        if own is None:
            return self.source.layer(index, low, high)
        if low >= own.step[0]:
            return between(own, low, high)
        earlier = self.source.layer(index, low, min(high, int(own.step[0]) - 1))
        later = between(own, low, high)
        return later if not len(earlier) else earlier if not len(later) else _stacked(earlier, later)

    def first_outside(self, index: int, eigenvalue: int | None = None) -> int | None:
        recorded, own = self.source.first_outside(index, eigenvalue), self.layers.get(index)
        if own is None or (recorded is not None and recorded < own.step[0]):
            return recorded
        outside = (own.distance < 0).any(axis=1) if eigenvalue is None else own.distance_of(eigenvalue) < 0
        return int(own.step[int(np.argmax(outside))]) if outside.any() else recorded

    def steps_outside(self, index: int, to_step: int) -> tuple[int, int]:
        return self.source.steps_outside(index, to_step)


def _joined(parts: list[Scalars], name: str) -> np.ndarray | None:
    columns = [getattr(part, name) for part in parts]
    if all(column is None for column in columns):
        return None
    missing = [np.full(len(part), np.nan) for part in parts]
    return np.concatenate([blank if column is None else column for column, blank in zip(columns, missing, strict=True)])


def _stacked(earlier: Rows, later: Rows) -> Rows:
    def both(name: str) -> np.ndarray | None:
        one, other = getattr(earlier, name), getattr(later, name)
        return None if one is None or other is None else np.concatenate([one, other])

    recorded = None
    if earlier.recorded is not None and later.recorded is not None:
        recorded = {kind: np.concatenate([earlier.recorded[kind], values]) for kind, values in later.recorded.items()}
    return Rows(
        step=np.concatenate([earlier.step, later.step]),
        distance=np.concatenate([earlier.distance, later.distance]),
        eigenvalue=both("eigenvalue"), weight=both("weight"), ratio=both("ratio"), dt=both("dt"), recorded=recorded,
    )  # fmt: skip
