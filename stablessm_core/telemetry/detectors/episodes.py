"""Runs every detector over a run's rows and raises one alert per episode.

Rows come in order, every training step of them, so the step that an alert names is exact. A condition that goes on holding
is one episode and raises one alert, at its first step; it may raise the next one after REARM_STEPS steps without it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Setup, Watch
from stablessm_core.telemetry.detectors.registry import KINDS
from stablessm_core.telemetry.detectors.rows import Rows

REARM_STEPS = 100


class Detectors:
    """Watches a run from its first row to its last. `thresholds` are the alerts' settings; a None switches its alert off.

    parameters: names of the model's parameters, in the order of the rows' norms. setup: how the run trains.
    """

    def __init__(self, parameters: list[str], setup: Setup | None = None, **thresholds: float | None) -> None:
        allowed = {kind.setting for kind in KINDS.values()} - {None}
        if unknown := thresholds.keys() - allowed:
            raise ValueError(f"alert settings are {sorted(unknown)}; allowed are {sorted(map(str, allowed))}")
        self._watches: dict[str, Watch] = {}
        for kind in KINDS.values():
            threshold = 0.0 if kind.setting is None else thresholds.get(kind.setting)
            if kind.detect is not None and threshold is not None:
                self._watches[kind.name] = Watch(parameters=parameters, setup=setup, threshold=threshold)
        self._last: dict[tuple[str, str], int] = {}  # last step at which a condition held, by kind and layer

    def reset(self) -> None:
        """Forget every episode."""
        self._last.clear()
        for watch in self._watches.values():
            watch.memory.clear()

    def state(self) -> dict[str, np.ndarray]:
        """Episodes in progress, for a checkpoint: without them a resumed run would raise other alerts than an undisturbed one."""
        arrays = {f"last/{kind}/{layer}": np.array([step], np.int64) for (kind, layer), step in self._last.items()}
        for name, watch in self._watches.items():
            arrays |= {f"memory/{name}/{layer}": array.copy() for layer, array in watch.memory.items()}
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from `state()`, and from nothing else."""
        self.reset()
        for key, array in arrays.items():
            what, *kind, layer = key.split("/")
            if what == "last":
                self._last[kind[0], layer] = int(array[0])
                continue
            name = "dead_eigenvalues" if what == "zeros" else kind[0]  # older checkpoints
            if name in self._watches:
                self._watches[name].memory[layer] = np.array(array)

    def first_nonfinite(self, rows: Rows) -> int | None:
        """The first row in which numbers are lost: a non-finite loss, weight, state or gradient."""
        found = [int(np.argmax(condition.holds)) for kind, condition in self._conditions(rows, (True,)) if condition.holds.any()]
        return min(found) if found else None

    def scan(self, rows: Rows, *, finite: bool = False) -> list[Alert]:
        """Alerts of the rows, by step; of one step, those of the whole model first and the likeliest cause before others.

        finite: `first_nonfinite` has found no number lost in them.
        """
        found: list[tuple[int, int, Alert]] = []
        for kind, condition in self._conditions(rows, (False,) if finite else (False, True)):
            place = -1 if condition.layer is None else int(condition.layer.partition(".")[0])
            for row in self._begins(kind, rows.first_step, condition):
                found.append((rows.first_step + row, place, condition.alert(row)))
        return [alert for _, _, alert in sorted(found, key=lambda each: each[:2])]  # stable: keeps the order of the kinds

    def _conditions(self, rows: Rows, nonfinite: Sequence[bool]) -> Iterator[tuple[AlertKind, Condition]]:
        for name, watch in self._watches.items():
            kind = KINDS[name]
            if kind.detect is not None and kind.nonfinite in nonfinite:
                for condition in kind.detect(rows, watch):
                    yield kind, condition

    def _begins(self, kind: AlertKind, first_step: int, condition: Condition) -> list[int]:
        # rows at which the condition begins to hold after at least REARM_STEPS steps without it
        if not condition.holds.any():
            return []
        key = (kind.name, condition.layer or "0")
        held = np.flatnonzero(condition.holds)
        before = np.concatenate([[self._last.get(key, -REARM_STEPS - 1)], first_step + held[:-1]])
        self._last[key] = first_step + int(held[-1])
        return [int(row) for row in held[first_step + held - before > REARM_STEPS]]
