"""What the host makes of recorded columns: the derived series, and the rows the detectors read. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stablessm_core.forms import Form, spread
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Detectors, LayerRows, Rows, Values


@dataclass(frozen=True)
class LayerForm:
    """One watched record: its layer's number, its parameter path, form and name ("" for the layer's own eigenvalues).

    `wide` when only its quantiles and extremes are recorded; width: eigenvalues.
    """

    index: int
    path: str
    form: Form
    width: int
    wide: bool = False
    record: str = ""

    @property
    def id(self) -> str:
        return f"{self.index}.{self.record}" if self.record else str(self.index)


class Monitor:
    """Reads the columns of consecutive training steps, as the recorder hands them over: name -> float32 (rows, width)."""

    def __init__(self, layers: list[LayerForm], detectors: Detectors) -> None:
        self.layers, self.detectors = layers, detectors

    def read(self, first_step: int, columns: Mapping[str, np.ndarray]) -> tuple[Rows, dict[str, np.ndarray]]:
        """The detectors' rows, and per group its derived columns (rows, derived width)."""
        layers, derived = [], {}
        nothing = np.empty((len(columns[names.TRAIN_LOSS]), 0), np.float32)
        for layer in self.layers:
            if layer.wide:
                layers.append(self._wide(layer, columns))
                continue
            recorded = recorded_of(layer, columns)
            of = {kind: layer.form.derive(kind, recorded) for kind in layer.form.derived}
            if of:
                derived[names.layer_group(layer.id)] = np.concatenate(list(of.values()), axis=1)
            layers.append(
                LayerRows(
                    layer.index,
                    layer.path,
                    ratio=Values(columns.get(names.layer_series(layer.id, "grad_over_weight"), nothing)),
                    weight=Values(columns[names.layer_series(layer.id, "weight")]),
                    distance=Values(of.get("boundary_distance", nothing)),
                    state=Values(columns.get(f"state/{layer.id}", nothing)),
                    form=layer.form,
                    recorded=recorded,
                    record=layer.record,
                )
            )
        batch, lr, grad_norm = (
            columns[name][:, 0] if name in columns else None for name in (names.BATCH_NONFINITE, names.LR, names.GRAD_NORM)
        )
        return Rows(first_step, columns[names.TRAIN_LOSS][:, 0], columns["norms"], layers, batch, lr, grad_norm), derived

    def _wide(self, layer: LayerForm, columns: Mapping[str, np.ndarray]) -> LayerRows:
        def of(kind: str) -> np.ndarray:
            return columns[names.layer_series(layer.id, kind)]

        smallest_at = of("boundary_distance_smallest_index")
        states = (f"state/{layer.id}", f"state_at/{layer.id}")
        state = Values(*(columns[name] for name in states)) if states[0] in columns else Values(smallest_at[:, :0])
        return LayerRows(
            layer.index,
            layer.path,
            ratio=Values(of("grad_over_weight_largest"), of("grad_over_weight_largest_index")),
            weight=Values(columns[f"weight_at/{layer.id}"], smallest_at),
            distance=Values(of("boundary_distance_smallest"), smallest_at),
            state=state,
            record=layer.record,
        )


def recorded_of(layer: LayerForm, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The form's inputs, (rows, eigenvalues), a step size or gate that several share repeated for each."""
    found = {kind: columns[names.layer_series(layer.id, kind)] for kind in layer.form.inputs}
    return spread(found, layer.width, axis=1)
