"""What follows from the steps one after another: series that need the step after or all before, a run's extremes. No torch.

A layer's relative step of step t needs the weights of step t + 1, so its group `ssm/{layer}/derived` is one step behind the
recorded ones. What is waited for, and the best loss so far, go into a checkpoint, so that a run which is resumed or rolled back
goes on as if it had never stopped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from stablessm_core.stability import lambda_bar, loss_over_best, overflow_budget, relative_step
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.blocks import Block, LevelBuilder
from stablessm_core.telemetry.monitor import LayerForm, recorded_of

Columns = Mapping[str, np.ndarray]
Extremes = dict[str, float]


class Following:
    """Reads the columns of consecutive training steps, as the monitor does: name -> float32 (rows, width).

    catalogue: which series of it are to be built: those of the groups `ssm/{layer}/derived`. every: steps between kept ones.
    """

    def __init__(self, layers: Sequence[LayerForm], catalogue: Sequence[names.SeriesSpec], every: int) -> None:
        known = {s.name: s for s in catalogue}
        self.layers = [_Layer(layer, known, every) for layer in layers if layer.form.map != "none"]
        self._best = np.inf

    def read(self, first_step: int, columns: Columns) -> tuple[list[Block], dict[str, np.ndarray], Extremes]:
        """Level blocks that are complete, the columns made here (rows, 1), and the extremes of these steps."""
        blocks: list[Block] = []
        found: list[Extremes] = []
        for layer in self.layers:
            own, extremes = layer.read(first_step, columns)
            blocks += own
            found.append(extremes)
        ratio, self._best = loss_over_best(columns[names.TRAIN_LOSS][:, 0], self._best)
        made = {names.LOSS_OVER_BEST: ratio.astype(np.float32)[:, None]}
        extremes = {
            name: keep(values) for name, keep in names.SO_FAR.items() if (values := [e[name] for e in found if name in e])
        }
        return blocks, made, extremes

    def state(self) -> dict[str, np.ndarray]:
        """What the next step needs of those before it, as arrays; `restore` continues from it exactly."""
        arrays = {"best_loss": np.array([self._best])}
        for layer in self.layers:
            arrays |= {f"{layer.id}/{key}": array for key, array in layer.state().items()}
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Inverse of `state`; with nothing, as a checkpoint of an earlier version has, begins anew."""
        self._best = float(arrays["best_loss"][0]) if "best_loss" in arrays else np.inf
        for layer in self.layers:
            head = f"{layer.id}/"
            layer.restore({key.removeprefix(head): array for key, array in arrays.items() if key.startswith(head)})


class _Layer:
    def __init__(self, layer: LayerForm, known: Mapping[str, names.SeriesSpec], every: int) -> None:
        self.layer, self.id, self.form, self.wide, self.every = layer, layer.id, layer.form, layer.wide, every
        self.group = names.derived_group(layer.id)
        own = [s for s in known.values() if s.group == self.group]
        self.kinds = [s.name.rpartition("/")[2] for s in own]
        self.length = next((s.form["length"] for s in own if s.form and "length" in s.form), None)
        self.restore({})

    def state(self) -> dict[str, np.ndarray]:
        arrays = {f"levels/{key}": array for key, array in self._levels.state().items()}
        if self._step is not None:
            arrays |= {"step": np.array([self._step], np.int64)} | {f"last/{k}": row for k, row in self._last.items()}
        if self._held is not None:
            arrays |= {"held_step": np.array([self._held[0]], np.int64), "held": np.array([self._held[1]])}
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        self._levels = LevelBuilder(self.group, self.every)
        if levels := {key.removeprefix("levels/"): array for key, array in arrays.items() if key.startswith("levels/")}:
            self._levels.restore(levels)
        self._step = int(arrays["step"][0]) if "step" in arrays else None  # of the newest row
        self._held = (int(arrays["held_step"][0]), float(arrays["held"][0])) if "held" in arrays else None
        self._last = {key.removeprefix("last/"): array for key, array in arrays.items() if key.startswith("last/")}

    def read(self, first_step: int, columns: Columns) -> tuple[list[Block], Extremes]:
        return self._of_extremes(first_step, columns) if self.wide else self._of_all(first_step, columns)

    def _of_all(self, first_step: int, columns: Columns) -> tuple[list[Block], Extremes]:
        new = recorded_of(self.layer, columns)
        whole = new
        if self._step is not None and self._step == first_step - 1:
            whole = {kind: np.concatenate([self._last[kind][None], rows]) for kind, rows in new.items()}
        recorded = {kind: rows.astype(np.float64) for kind, rows in whole.items()}
        distance = self.form.derive("boundary_distance", recorded)
        moved = relative_step(lambda_bar(self.form, recorded), distance)
        count = len(distance) - (whole is not new)
        self._step, self._last = first_step + count - 1, {kind: rows[-1].copy() for kind, rows in new.items()}
        nearest = distance.min(axis=1)
        ratio = columns.get(names.layer_series(self.id, "grad_over_weight"), np.empty((count, 0), np.float32))
        extremes = self._extremes(ratio, nearest[-count:]) | _largest("largest_relative_step", moved)
        if names.RELATIVE_STEP in self.kinds:
            return self._feed(first_step + count - len(distance), moved, nearest[:-1]), extremes
        nearest = nearest[-count:]
        return self._thinned(first_step, nearest), extremes

    def _of_extremes(self, first_step: int, columns: Columns) -> tuple[list[Block], Extremes]:
        nearest = columns[names.layer_series(self.id, "boundary_distance_smallest")][:, 0].astype(np.float64)
        ratio = columns[names.layer_series(self.id, "grad_over_weight_largest")]
        return self._thinned(first_step, nearest), self._extremes(ratio, nearest)

    def _extremes(self, ratio: np.ndarray, nearest: np.ndarray) -> Extremes:
        found = _largest("largest_ratio", ratio)
        known = nearest[~np.isnan(nearest)]
        if len(known):
            found["nearest_distance"] = float(known.min())
            if self.length is not None:
                found["overflow_budget"] = float(overflow_budget(self.length, known.min()))
        return found

    def _thinned(self, first_step: int, nearest: np.ndarray) -> list[Block]:
        # one kept step behind here too: a checkpoint then finds every group where its blocks end
        skip = (1 - first_step) % self.every
        kept, first = nearest[skip :: self.every], first_step + skip
        if not len(kept):
            return []
        if self._held is not None and self._held[0] == first - self.every:
            kept, first = np.append(self._held[1], kept), first - self.every
        self._held = first + self.every * (len(kept) - 1), float(kept[-1])
        return self._feed(first, None, kept[:-1])

    def _feed(self, first_step: int, moved: np.ndarray | None, nearest: np.ndarray) -> list[Block]:
        if not self.kinds or not len(nearest):
            return []
        parts = {} if moved is None else {names.RELATIVE_STEP: moved}
        if self.length is not None:
            parts[names.OVERFLOW_BUDGET] = overflow_budget(self.length, nearest)[:, None]
        with np.errstate(over="ignore"):  # beyond float32 is infinite in the levels
            values = np.concatenate([parts[kind] for kind in self.kinds], axis=1).T.astype(np.float32)
        return self._levels.feed(first_step, np.ascontiguousarray(values))


def _largest(name: str, values: np.ndarray) -> Extremes:
    finite = values[np.isfinite(values)]
    return {name: float(finite.max())} if finite.size else {}
