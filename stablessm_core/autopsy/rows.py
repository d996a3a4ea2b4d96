"""The rows of the replayed steps, for a run that recorded only every n-th step: what the recorder would have written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stablessm_core.autopsy.bench import Bench, Row
from stablessm_core.telemetry import series as names

SCALARS = {
    "loss": names.TRAIN_LOSS, "grad_norm": names.GRAD_NORM, "lr": names.LR, "weight_norm": names.WEIGHT_NORM,
    "batch": names.BATCH_NONFINITE, "largest_input": names.LARGEST_INPUT, "largest_target": names.LARGEST_TARGET,
}  # fmt: skip
MOST_NUMBERS = 8192  # of all layers together; a model with more eigenvalues has the newest rows only


def replayed_rows(bench: Bench, rows: Sequence[Row]) -> dict[str, Any] | None:
    """{steps, scalars: {name: [one number per step]}, layers: [{layer, recorded: {kind: [[one number per eigenvalue] per
    step]}}]}, as `Findings.replayed` describes it. None if the run recorded every step, so that nothing is missing.

    Layers of which only extremes are recorded have no rows. A step after the first one that is not finite never happened.
    """
    if bench.config.telemetry.every == 1 or not rows:
        return None
    values = np.stack([row.values for row in rows])
    layers = {}
    for record in bench.records:
        if record.first and not record.wide:
            kinds = ["grad_over_weight"] * (record.form.map != "fixed") + list(record.form.recorded)
            series = {kind: names.layer_series(record.id, kind) for kind in kinds}
            layers[record.layer] = {kind: bench.columns[name] for kind, name in series.items() if name in bench.columns}
    width = sum(part.stop - part.start for columns in layers.values() for part in columns.values())
    shown = values[-max(1, MOST_NUMBERS // max(1, width)) :]
    return {
        "steps": [row.step for row in rows],
        "scalars": {
            name: _listed(values[:, bench.columns[series]][:, 0]) for name, series in SCALARS.items() if series in bench.columns
        },
        "layers": [
            {"layer": layer, "recorded": {kind: _listed(shown[:, part]) for kind, part in columns.items()}}
            for layer, columns in layers.items()
        ],
    }


def _listed(values: np.ndarray) -> list[Any]:
    """Nested lists whose numbers have the digits that float32 needs."""
    if values.ndim > 1:
        return [_listed(row) for row in values]
    return [float(f"{value:.9g}") for value in values.tolist()]
