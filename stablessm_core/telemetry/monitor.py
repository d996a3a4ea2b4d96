"""What the host makes of recorded columns: the derived series, and the rows the detectors read. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stablessm_core.forms import DERIVED, Form
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Detectors, LayerRows, Rows, Values


@dataclass(frozen=True)
class LayerForm:
    """One watched layer: number, parameter path, form; `wide` when only its quantiles and extremes are recorded."""

    index: int
    path: str
    form: Form
    wide: bool = False


class Monitor:
    """Reads the columns of consecutive training steps, as the recorder hands them over: name -> float32 (rows, width)."""

    def __init__(self, layers: list[LayerForm], detectors: Detectors) -> None:
        self.layers, self.detectors = layers, detectors

    def read(self, first_step: int, columns: Mapping[str, np.ndarray]) -> tuple[Rows, dict[str, np.ndarray]]:
        """The detectors' rows, and per group its derived columns (rows, derived width)."""
        layers, derived = [], {}
        for layer in self.layers:
            if layer.wide:
                layers.append(self._wide(layer, columns))
                continue
            recorded = {kind: columns[names.layer_series(layer.index, kind)] for kind in layer.form.inputs}
            of = {kind: layer.form.derive(kind, recorded) for kind in DERIVED}
            derived[names.layer_group(layer.index)] = np.concatenate(list(of.values()), axis=1)
            ratio, state = columns[names.layer_series(layer.index, "grad_over_weight")], columns[f"state/{layer.index}"]
            layers.append(
                LayerRows(
                    layer.index,
                    layer.path,
                    ratio=Values(ratio),
                    weight=Values(recorded["weight"]),
                    distance=Values(of["boundary_distance"]),
                    state=Values(state),
                    form=layer.form,
                    recorded=recorded,
                )
            )
        batch, lr, grad_norm = (
            columns[name][:, 0] if name in columns else None for name in (names.BATCH_NONFINITE, names.LR, names.GRAD_NORM)
        )
        return Rows(first_step, columns[names.TRAIN_LOSS][:, 0], columns["norms"], layers, batch, lr, grad_norm), derived

    def _wide(self, layer: LayerForm, columns: Mapping[str, np.ndarray]) -> LayerRows:
        def of(kind: str) -> np.ndarray:
            return columns[names.layer_series(layer.index, kind)]

        smallest_at = of("boundary_distance_smallest_index")
        return LayerRows(
            layer.index,
            layer.path,
            ratio=Values(of("grad_over_weight_largest"), of("grad_over_weight_largest_index")),
            weight=Values(columns[f"weight_at/{layer.index}"], smallest_at),
            distance=Values(of("boundary_distance_smallest"), smallest_at),
            state=Values(columns[f"state/{layer.index}"], columns[f"state_at/{layer.index}"]),
        )
