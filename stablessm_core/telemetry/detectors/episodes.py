"""Runs every detector over a run's rows and raises one alert per episode.

Rows arrive in order, one for every training step, so the step that an alert names is exact. A condition that continues to hold
is one episode and raises one alert, at its first step. The condition can raise the next alert after REARM_STEPS steps in
which it did not hold.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from stablessm_core.telemetry.detectors import batch_skipped
from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Setup, Watch
from stablessm_core.telemetry.detectors.nonfinite import NONFINITE_BATCH
from stablessm_core.telemetry.detectors.registry import KINDS
from stablessm_core.telemetry.detectors.rows import Rows

REARM_STEPS = 100


class Detectors:
    """Watches a run from its first row to its last.

    parameters: names of the model's parameters, in the order of the rows' norms. setup: how the run trains. thresholds: the
    alerts' settings; None switches an alert off.
    """

    def __init__(self, parameters: list[str], setup: Setup | None = None, **thresholds: float | None) -> None:
        allowed = {kind.setting for kind in KINDS.values()} - {None}
        if unknown := thresholds.keys() - allowed:
            raise ValueError(f"alert settings are {sorted(unknown)}; allowed: {sorted(map(str, allowed))}")
        self._watches: dict[str, Watch] = {}
        skips = setup is not None and setup.skips_bad_batches
        unused = NONFINITE_BATCH if skips else batch_skipped.KIND.name  # a bad batch raises one of the two
        for kind in KINDS.values():
            threshold = 0.0 if kind.setting is None else thresholds.get(kind.setting)
            if kind.detect is not None and threshold is not None and kind.name != unused:
                self._watches[kind.name] = Watch(parameters=parameters, setup=setup, threshold=threshold)
        self._last: dict[tuple[str, str], int] = {}  # the last step at which a condition held, by kind of alert and layer

    def reset(self) -> None:
        """Forget every episode."""
        self._last.clear()
        for watch in self._watches.values():
            watch.memory.clear()

    def state(self) -> dict[str, np.ndarray]:
        """Episodes in progress, for a checkpoint, so that a resumed run raises the same alerts as an uninterrupted run."""
        arrays = {f"last/{kind}/{layer}": np.array([step], np.int64) for (kind, layer), step in self._last.items()}
        for name, watch in self._watches.items():
            arrays |= {f"memory/{name}/{layer}": array.copy() for layer, array in watch.memory.items()}
        return arrays

    def restore(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Continue from `state()`; earlier episodes are discarded."""
        self.reset()
        for key, array in arrays.items():
            what, *kind, layer = key.split("/")
            if what == "last":
                self._last[kind[0], layer] = int(array[0])
                continue
            name = "dead_eigenvalues" if what == "zeros" else kind[0]  # older checkpoints call this kind "zeros"
            if name in self._watches:
                self._watches[name].memory[layer] = np.array(array)

    def first_nonfinite(self, rows: Rows) -> int | None:
        """The first row with a non-finite batch, loss, weight, state or gradient; None if there is no such row."""
        found = [int(np.argmax(condition.holds)) for kind, condition in self._conditions(rows, (True,)) if condition.holds.any()]
        return min(found) if found else None

    def scan(self, rows: Rows, *, finite: bool = False) -> list[Alert]:
        """The alerts of the rows, sorted by step. Within a step, alerts about the whole model come before alerts about layers,
        and alerts about more likely causes come first.

        finite: True if `first_nonfinite` has found no non-finite number in the rows.
        """
        found: list[tuple[int, int, Alert]] = []
        for kind, condition in self._conditions(rows, (False,) if finite else (False, True)):
            layer = -1 if condition.layer is None else int(condition.layer.partition(".")[0])
            for row in self._begins(kind, rows.first_step, condition):
                found.append((rows.first_step + row, layer, condition.alert(row)))
        return [alert for _, _, alert in sorted(found, key=lambda each: each[:2])]  # a stable sort keeps the order of the kinds

    def _conditions(self, rows: Rows, nonfinite: Sequence[bool]) -> Iterator[tuple[AlertKind, Condition]]:
        for name, watch in self._watches.items():
            kind = KINDS[name]
            if kind.detect is not None and kind.nonfinite in nonfinite:
                for condition in kind.detect(rows, watch):
                    yield kind, condition

    def _begins(self, kind: AlertKind, first_step: int, condition: Condition) -> list[int]:
        # rows in which the condition starts to hold after at least REARM_STEPS steps without it
        if not condition.holds.any():
            return []
        key = (kind.name, condition.layer or "0")
        held = np.flatnonzero(condition.holds)
        before = np.concatenate([[self._last.get(key, -REARM_STEPS - 1)], first_step + held[:-1]])
        self._last[key] = first_step + int(held[-1])
        return [int(row) for row in held[first_step + held - before > REARM_STEPS]]
