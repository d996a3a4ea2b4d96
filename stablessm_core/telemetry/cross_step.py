"""Builds the series that need the next step or all earlier steps, and a run's extremes. Does not import torch.

A layer's relative step at step t needs the weights of step t + 1, so its group `ssm/{layer}/derived` is one step behind the
recorded groups. A checkpoint holds the unfinished step and the best loss so far, so that a resumed or rolled-back run continues
as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.boundary import overflow_distance
from stablessm_core.telemetry.column_reader import LayerForm, recorded_of, stacked
from stablessm_core.telemetry.stability import loss_over_best, overflow_budget, relative_step, update_step

Columns = Mapping[str, np.ndarray]
Extremes = dict[str, float]


class CrossStepSeries:
    """Reads the columns of consecutive training steps, as `ColumnReader` does: name -> float32 (rows, width).

    catalogue: all series of the run; the groups `ssm/{layer}/derived` contain the series to build. every: every n-th step is
    recorded.
    """

    def __init__(self, layers: Sequence[LayerForm], catalogue: Sequence[names.SeriesSpec], every: int) -> None:
        own: dict[str, list[names.SeriesSpec]] = {}
        for series in catalogue:
            own.setdefault(series.group, []).append(series)
        self._stacks: list[_Stack] = []
        for stack in stacked([layer for layer in layers if layer.form.map != "none"]):
            alike: dict[tuple[tuple[str, ...], int | None], list[LayerForm]] = {}
            for layer in stack:
                alike.setdefault(_kinds_and_length(own.get(names.derived_group(layer.id), [])), []).append(layer)
            self._stacks += [_Stack(of, *made, every) for made, of in alike.items()]
        self._best = np.inf

    def read(self, first_step: int, columns: Columns) -> tuple[list[Block], dict[str, np.ndarray], Extremes]:
        """The complete level blocks, the columns computed from these rows, each (rows, 1), and the extremes of these steps."""
        blocks: list[Block] = []
        found: list[Extremes] = []
        for stack in self._stacks:
            own, extremes = stack.read(first_step, columns)
            blocks += own
            found.append(extremes)
        ratio, self._best = loss_over_best(columns[names.TRAIN_LOSS][:, 0], self._best)
        made = {names.LOSS_OVER_BEST: ratio.astype(np.float32)[:, None]}
        extremes = {
            name: keep(values) for name, keep in names.SO_FAR.items() if (values := [e[name] for e in found if name in e])
        }
        return blocks, made, extremes

    def state(self) -> dict[str, np.ndarray]:
        """The values that the next step needs from earlier steps, as arrays from which `restore` continues."""
        arrays = {"best_loss": np.array([self._best])}
        for stack in self._stacks:
            arrays |= stack.state()
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from `state()`. If the arrays are missing, as in checkpoints of earlier versions, start as for a new run."""
        self._best = float(arrays["best_loss"][0]) if "best_loss" in arrays else np.inf
        for stack in self._stacks:
            stack.restore(arrays)


def _kinds_and_length(series: Sequence[names.SeriesSpec]) -> tuple[tuple[str, ...], int | None]:
    """The kinds of the series to build for a layer, in order, and the sequence length if a series' form contains it."""
    length = next((s.form["length"] for s in series if s.form and "length" in s.form), None)
    return tuple(s.name.rpartition("/")[2] for s in series), length


class _Stack:
    """A group of layers with the same form, width and series, computed together. A wide layer forms its own stack."""

    def __init__(self, layers: Sequence[LayerForm], kinds: Sequence[str], length: int | None, every: int) -> None:
        self.layers, self.kinds, self.length, self.every = layers, kinds, length, every
        self.form, self.width, self.wide = layers[0].form, layers[0].width, layers[0].wide
        self.restore({})

    def state(self) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for i, layer in enumerate(self.layers):
            head, own = f"{layer.id}/", slice(i * self.width, (i + 1) * self.width)
            arrays |= {f"{head}levels/{key}": array for key, array in self._levels[i].state().items()}
            if self._step is not None:
                arrays[head + "step"] = np.array([self._step], np.int64)
                arrays |= {f"{head}last/{kind}": row[own].copy() for kind, row in self._last.items()}
            if self._held is not None:
                arrays |= {
                    head + "held_step": np.array([self._held[0]], np.int64),
                    head + "held": self._held[1][i : i + 1].copy(),
                }
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from the layers' arrays. If the layers' arrays are from different steps, start as for a new run."""
        self._levels: list[LevelBuilder] = []
        parts: list[dict[str, np.ndarray]] = []
        for layer in self.layers:
            head, levels = f"{layer.id}/", f"{layer.id}/levels/"
            self._levels.append(LevelBuilder(names.derived_group(layer.id), self.every))
            if kept := {key.removeprefix(levels): array for key, array in arrays.items() if key.startswith(levels)}:
                self._levels[-1].restore(kept)
            parts.append({key.removeprefix(head): array for key, array in arrays.items() if key.startswith(head)})

        def common_step(kind: str) -> int | None:
            values = {int(part[kind][0]) if kind in part else None for part in parts}
            return values.pop() if len(values) == 1 else None

        self._step, held_step = common_step("step"), common_step("held_step")  # steps of the newest row and of the held-back row
        self._held = None if held_step is None else (held_step, np.concatenate([part["held"] for part in parts]))
        kinds = [key for key in parts[0] if key.startswith("last/")] if self._step is not None else []
        self._last = {key.removeprefix("last/"): np.concatenate([part[key] for part in parts]) for key in kinds}

    def read(self, first_step: int, columns: Columns) -> tuple[list[Block], Extremes]:
        """See `CrossStepSeries.read`. The budget follows from `boundary.overflow_distance`, "nearest_distance" is the smallest
        value of the series "boundary_distance". The two differ only if every channel has its own step size."""
        return self._of_extremes(first_step, columns) if self.wide else self._of_all(first_step, columns)

    def _of_all(self, first_step: int, columns: Columns) -> tuple[list[Block], Extremes]:
        new = recorded_of(self.layers, columns)
        count = len(next(iter(new.values())))
        before = int(self._step is not None and self._step == first_step - 1)  # 1 if the row of the previous step is known
        recorded = {kind: np.empty((before + count, rows.shape[1])) for kind, rows in new.items()}
        for kind, rows in new.items():
            recorded[kind][before:] = rows
            if before:
                recorded[kind][0] = self._last[kind]
        self._step, self._last = first_step + count - 1, {kind: rows[-1].copy() for kind, rows in new.items()}
        angle = ("phase",) if self.form.complex else ()
        of = self.form.derive_all(("eigenvalue", "boundary_distance", *angle), recorded)
        distance = of["boundary_distance"]
        eigenvalue = of["eigenvalue"] * np.exp(1j * of["phase"]) if angle else of["eigenvalue"]
        moved = update_step(self.form, recorded) if self.form.gate else relative_step(eigenvalue, distance)
        nearest = distance.reshape(len(distance), len(self.layers), -1).min(axis=2)  # (rows, layers)
        deciding = nearest
        if self.form.channels:
            deciding = overflow_distance(self.form, recorded).reshape(len(distance), len(self.layers), -1).min(axis=2)
        ratio = [columns[name] for layer in self.layers if (name := names.layer_series(layer.id, "grad_over_weight")) in columns]
        extremes = self._extremes(ratio, nearest[before:], deciding[before:]) | _largest("largest_relative_step", [moved])
        if names.RELATIVE_STEP in self.kinds:
            return self._feed(first_step - before, moved, deciding[:-1]), extremes
        return self._thinned(first_step, deciding[before:]), extremes

    def _of_extremes(self, first_step: int, columns: Columns) -> tuple[list[Block], Extremes]:
        (layer,) = self.layers
        nearest = columns[names.layer_series(layer.id, "boundary_distance_smallest")][:, :1].astype(np.float64)
        ratio = columns[names.layer_series(layer.id, "grad_over_weight_largest")]
        return self._thinned(first_step, nearest), self._extremes([ratio], nearest, nearest)

    def _extremes(self, ratio: Sequence[np.ndarray], nearest: np.ndarray, deciding: np.ndarray) -> Extremes:
        found = _largest("largest_ratio", ratio)
        if not np.isnan(least := _least(nearest)):
            found["nearest_distance"] = float(least)
        if self.length is not None and not np.isnan(least := _least(deciding)):
            found["overflow_budget"] = float(overflow_budget(self.length, least))
        return found

    def _thinned(self, first_step: int, nearest: np.ndarray) -> list[Block]:
        # also hold back the newest recorded step, so that in a checkpoint the blocks of every group end at the same step
        skip = (1 - first_step) % self.every
        kept, first = nearest[skip :: self.every], first_step + skip
        if not len(kept):
            return []
        if self._held is not None and self._held[0] == first - self.every:
            kept, first = np.concatenate([self._held[1][None], kept]), first - self.every
        self._held = first + self.every * (len(kept) - 1), kept[-1].copy()
        return self._feed(first, None, kept[:-1])

    def _feed(self, first_step: int, moved: np.ndarray | None, nearest: np.ndarray) -> list[Block]:
        if not self.kinds or not len(nearest):
            return []
        shape = (*nearest.shape, -1)  # (rows, layers, columns of each layer)
        parts = {} if moved is None else {names.RELATIVE_STEP: moved.reshape(shape)}
        if self.length is not None:
            parts[names.OVERFLOW_BUDGET] = overflow_budget(self.length, nearest).reshape(shape)
        with np.errstate(over="ignore"):  # numbers beyond the range of float32 become infinite in the levels
            values = np.concatenate([parts[kind] for kind in self.kinds], axis=2).astype(np.float32)
        return [block for i, levels in enumerate(self._levels) for block in levels.feed(first_step, values[:, i].T)]


def _least(values: np.ndarray) -> Any:
    """The smallest number; NaN if there is none."""
    least = values.min()
    if np.isnan(least) and len(known := values[~np.isnan(values)]):
        least = known.min()
    return least


def _largest(name: str, parts: Sequence[np.ndarray]) -> Extremes:
    """{name: the largest finite number}; {} if there is no finite number."""
    found = []
    for values in parts:
        largest = values.max(initial=-np.inf)
        if not np.isfinite(largest):  # some number is infinite or NaN, or there is no number
            finite = values[np.isfinite(values)]
            if not finite.size:
                continue
            largest = finite.max()
        found.append(float(largest))
    return {name: max(found)} if found else {}
