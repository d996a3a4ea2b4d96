"""Where a run goes wrong: non-finite numbers, extreme ratios, eigenvalues at the boundary. Pure numpy, no torch.

Rows come in order, every training step of them, so a step named here is exact. A condition that holds on and on is one
episode and raises one alert, at its first step; it may raise the next one after REARM_STEPS steps without it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from stablessm_core.telemetry import series as names

AlertKind = Literal[
    "nonfinite_loss",
    "nonfinite_gradient",
    "nonfinite_weight",
    "nonfinite_state",
    "grad_over_weight",
    "boundary_distance",
    "unstable_eigenvalue",
    "dead_eigenvalues",
    "no_progress",
    "rolled_back",
    "worker_lost",
    "spool_full",
]
Severity = Literal["warning", "critical"]
NONFINITE: tuple[AlertKind, ...] = ("nonfinite_weight", "nonfinite_state", "nonfinite_loss", "nonfinite_gradient")  # as causes go

REARM_STEPS = 100
DEAD_STEPS = 100  # a gradient of exactly 0 for this long


@dataclass(frozen=True)
class Alert:
    """Something a person should see, and where it happened. `value` may be NaN or infinite; `series` names the chart it is on."""

    kind: AlertKind
    severity: Severity
    step: int
    series: str
    layer: int | None
    eigenvalue: int | None
    tensor: str
    value: float | None
    message: str


@dataclass(frozen=True)
class Values:
    """Numbers of a layer's eigenvalues, (rows, columns); `at` says which eigenvalue each is, None that it is the column."""

    values: np.ndarray
    at: np.ndarray | None = None

    def eigenvalue(self, row: int, column: int) -> int:
        return column if self.at is None else int(self.at[row, column])


@dataclass(frozen=True)
class LayerRows:
    """One layer in some consecutive training steps. `path`: its weight in the model; `weight` and `distance` go together."""

    layer: int
    path: str
    ratio: Values
    weight: Values
    distance: Values
    state: Values


@dataclass(frozen=True)
class Rows:
    """Consecutive training steps from `first_step` on. `norms` (rows, 2 x parameters): of the weights, then of the gradients."""

    first_step: int
    loss: np.ndarray
    norms: np.ndarray
    layers: list[LayerRows]

    def cut(self, count: int) -> Rows:
        """The first `count` rows."""
        layers = [
            LayerRows(
                layer.layer,
                layer.path,
                *(
                    Values(v.values[:count], None if v.at is None else v.at[:count])
                    for v in (layer.ratio, layer.weight, layer.distance, layer.state)
                ),
            )
            for layer in self.layers
        ]
        return Rows(self.first_step, self.loss[:count], self.norms[:count], layers)


class Detectors:
    """Watches a run from its first row to its last; thresholds of None are off."""

    def __init__(
        self, parameters: list[str], *, max_grad_over_weight: float | None = None, min_boundary_distance: float | None = None
    ) -> None:
        self.parameters = parameters
        self.max_grad_over_weight = max_grad_over_weight
        self.min_boundary_distance = min_boundary_distance
        self.reset()

    def reset(self) -> None:
        """Forget every episode."""
        self._last: dict[tuple[str, int], int] = {}  # last step at which a condition held
        self._zeros: dict[int, np.ndarray] = {}  # per layer: steps for which each eigenvalue's gradient has been 0

    def state(self) -> dict[str, np.ndarray]:
        """Episodes in progress, for a checkpoint: without them a resumed run would raise other alerts than an undisturbed one."""
        last = {f"last/{kind}/{layer}": np.array([step], np.int64) for (kind, layer), step in self._last.items()}
        return last | {f"zeros/{layer}": zeros.copy() for layer, zeros in self._zeros.items()}

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Go on from `state()`, and from nothing else."""
        self.reset()
        for key, array in arrays.items():
            what, *kind, layer = key.split("/")
            if what == "last":
                self._last[kind[0], int(layer)] = int(array[0])
            else:
                self._zeros[int(layer)] = np.array(array, np.int64)

    def first_nonfinite(self, rows: Rows) -> int | None:
        """The first row with a non-finite loss, weight, state or gradient."""
        found = [np.flatnonzero(bad)[0] for bad in self._nonfinite(rows).values() if bad.any()]
        return int(min(found)) if found else None

    def scan(self, rows: Rows) -> list[Alert]:
        """Alerts of the rows, by step; of one step, the likeliest cause first."""
        alerts: list[Alert] = []
        for kind, bad in self._nonfinite(rows).items():
            for row in self._episodes(kind, 0, rows.first_step, bad):
                alerts.append(self._blame(kind, rows, row))
        for layer in rows.layers:
            alerts += self._thresholds(rows.first_step, layer)
            alerts += self._dead(rows.first_step, layer)
        return sorted(alerts, key=lambda a: a.step)  # stable: keeps the order of causes

    def _nonfinite(self, rows: Rows) -> dict[AlertKind, np.ndarray]:
        half = rows.norms.shape[1] // 2
        states = np.zeros(len(rows.loss), bool)
        for layer in rows.layers:
            states |= ~np.isfinite(layer.state.values).all(axis=1)
        return {
            "nonfinite_weight": ~np.isfinite(rows.norms[:, :half]).all(axis=1),
            "nonfinite_state": states,
            "nonfinite_loss": ~np.isfinite(rows.loss),
            "nonfinite_gradient": ~np.isfinite(rows.norms[:, half:]).all(axis=1),
        }

    def _episodes(self, kind: AlertKind, layer: int, first_step: int, active: Any) -> list[int]:
        # rows at which a condition begins to hold after at least REARM_STEPS steps without it
        if not active.any():
            return []
        held = np.flatnonzero(active)
        before = np.concatenate([[self._last.get((kind, layer), -REARM_STEPS - 1)], first_step + held[:-1]])
        self._last[kind, layer] = first_step + int(held[-1])
        return [int(row) for row in held[first_step + held - before > REARM_STEPS]]

    def _blame(self, kind: AlertKind, rows: Rows, row: int) -> Alert:
        step = rows.first_step + row
        if kind == "nonfinite_loss":
            value = float(rows.loss[row])
            return Alert(kind, "critical", step, names.TRAIN_LOSS, None, None, "loss", value, f"loss is {value}")
        if kind == "nonfinite_state":
            for layer in rows.layers:
                bad = np.flatnonzero(~np.isfinite(layer.state.values[row]))
                if len(bad):
                    tensor = layer.path.rpartition(".")[0] + ".state"
                    return _at(
                        kind, "critical", step, layer, layer.state, row, _culprit(layer, row, bad), len(bad), tensor, "state"
                    )
        half = rows.norms.shape[1] // 2
        of_weights = kind == "nonfinite_weight"
        norms = rows.norms[row, :half] if of_weights else rows.norms[row, half:]
        bad_tensors = [self.parameters[i] for i in np.flatnonzero(~np.isfinite(norms))]
        # a watched weight first: there the eigenvalue can be named too
        for layer in rows.layers:
            if layer.path in bad_tensors:
                values = layer.weight if of_weights else layer.ratio
                bad = np.flatnonzero(~np.isfinite(values.values[row]))
                if len(bad):
                    tensor = layer.path if of_weights else layer.path + ".grad"
                    more = f"; {len(bad_tensors) - 1} other tensors too" if len(bad_tensors) > 1 else ""
                    what = "weight" if of_weights else "gradient over weight"
                    return _at(
                        kind, "critical", step, layer, values, row, _culprit(layer, row, bad), len(bad), tensor, what, more
                    )
        tensor = bad_tensors[0] if of_weights else bad_tensors[0] + ".grad"
        value = float(norms[self.parameters.index(bad_tensors[0])])
        more = f"; {len(bad_tensors) - 1} other tensors too" if len(bad_tensors) > 1 else ""
        return Alert(kind, "critical", step, names.GRAD_NORM, None, None, tensor, value, f"norm of {tensor} is {value}{more}")

    def _thresholds(self, first_step: int, layer: LayerRows) -> list[Alert]:
        alerts: list[Alert] = []
        ratio, distance = layer.ratio.values, layer.distance.values
        if self.max_grad_over_weight is not None:
            # not finite: the weight is exactly 0, where the ratio says nothing, or the gradient is nonfinite_gradient's
            above = (ratio > self.max_grad_over_weight) & np.isfinite(ratio)
            for row in self._episodes("grad_over_weight", layer.layer, first_step, above.any(axis=1)):
                worst, what = (
                    int(np.argmax(np.where(above[row], ratio[row], 0))),
                    f"gradient over weight above {self.max_grad_over_weight:g}:",
                )
                count = int(above[row].sum())
                alerts.append(
                    _at("grad_over_weight", "warning", first_step + row, layer, layer.ratio, row, worst, count, layer.path, what)
                )
        unstable = distance <= 0
        for row in self._episodes("unstable_eigenvalue", layer.layer, first_step, unstable.any(axis=1)):
            worst, count = int(np.nanargmin(distance[row])), int(unstable[row].sum())
            what = "|lambda_bar| >= 1, distance to the boundary"
            alerts.append(
                _at(
                    "unstable_eigenvalue",
                    "critical",
                    first_step + row,
                    layer,
                    layer.distance,
                    row,
                    worst,
                    count,
                    layer.path,
                    what,
                )
            )
        if self.min_boundary_distance is not None:
            near = (distance > 0) & (distance < self.min_boundary_distance)
            for row in self._episodes("boundary_distance", layer.layer, first_step, near.any(axis=1)):
                worst, count = int(np.argmin(np.where(near[row], distance[row], np.inf))), int(near[row].sum())
                what = f"distance to the boundary below {self.min_boundary_distance:g}:"
                alerts.append(
                    _at(
                        "boundary_distance",
                        "warning",
                        first_step + row,
                        layer,
                        layer.distance,
                        row,
                        worst,
                        count,
                        layer.path,
                        what,
                    )
                )
        return alerts

    def _dead(self, first_step: int, layer: LayerRows) -> list[Alert]:
        if layer.ratio.at is not None:
            return []  # extremes only: the zeros are not among them
        zero = layer.ratio.values == 0
        rows, width = zero.shape
        before = self._zeros.get(layer.layer, np.zeros(width, np.int64))
        if not zero.any():
            self._zeros[layer.layer] = np.zeros(width, np.int64)
            return []
        row = np.arange(rows)[:, None]
        last_moved = np.maximum.accumulate(np.where(zero, -1, row), axis=0)
        length = np.where(last_moved >= 0, row - last_moved, row + 1 + before)  # steps of zero gradient up to each row
        self._zeros[layer.layer] = length[-1]
        dead = length >= DEAD_STEPS
        return [
            _at(
                "dead_eigenvalues",
                "warning",
                first_step + row,
                layer,
                layer.weight,
                row,
                int(np.flatnonzero(dead[row])[0]),
                int(dead[row].sum()),
                layer.path,
                f"gradient exactly 0 for {DEAD_STEPS} steps; weight",
            )
            for row in self._episodes("dead_eigenvalues", layer.layer, first_step, dead.any(axis=1))
        ]


def _culprit(layer: LayerRows, row: int, bad: np.ndarray) -> int:
    # of several bad columns the one whose eigenvalue is nearest to the boundary, or furthest beyond it
    if layer.distance.at is not None or len(bad) == 1:
        return int(bad[0])
    distance = layer.distance.values[row, bad]
    return int(bad[np.argmin(np.where(np.isnan(distance), np.inf, distance))])


_CHART: dict[AlertKind, str] = {
    "nonfinite_gradient": "grad_over_weight",
    "nonfinite_weight": "weight",
    "nonfinite_state": "eigenvalue",
    "grad_over_weight": "grad_over_weight",
    "boundary_distance": "boundary_distance",
    "unstable_eigenvalue": "boundary_distance",
    "dead_eigenvalues": "grad_over_weight",
}


def _at(
    kind: AlertKind,
    severity: Severity,
    step: int,
    layer: LayerRows,
    values: Values,
    row: int,
    column: int,
    count: int,
    tensor: str,
    what: str,
    more: str = "",
) -> Alert:
    value, eigenvalue = float(values.values[row, column]), values.eigenvalue(row, column)
    others = f", and {'at least ' if values.at is not None else ''}{count - 1} others" if count > 1 else ""
    message = f"layer {layer.layer}, eigenvalue {eigenvalue}: {what} {value:.6g}{others}{more}"
    series = names.layer_series(layer.layer, _CHART[kind])
    return Alert(kind, severity, step, series, layer.layer, eigenvalue, tensor, value, message)
