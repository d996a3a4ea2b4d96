"""A layer's recurrent state has overflowed: the direct sign of an unstable eigenvalue."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from stablessm_core.telemetry.detectors.alert import Alert, AlertKind, Condition, Watch
from stablessm_core.telemetry.detectors.place import at_nonfinite_value
from stablessm_core.telemetry.detectors.rows import Rows


def detect(rows: Rows, watch: Watch) -> Iterator[Condition]:  # noqa: ARG001
    def alert(row: int) -> Alert:
        for layer in rows.layers:
            tensor = layer.path.rpartition(".")[0] + ".state"
            found = at_nonfinite_value(KIND, rows, row, layer, layer.state, chart="eigenvalue", what="state", tensor=tensor)
            if found is not None:
                return found
        raise AssertionError(f"no state is non-finite in row {row}")

    holds = np.zeros(len(rows.loss), bool)
    for layer in rows.layers:
        holds |= ~np.isfinite(layer.state.values).all(axis=1)
    yield Condition(None, holds & rows.finite_batch, alert)


KIND = AlertKind(
    name="nonfinite_state",
    severity="critical",
    meaning="The recurrent state of an eigenvalue is NaN or infinite at the end of a sequence.",
    detect=detect,
    nonfinite=True,
)
