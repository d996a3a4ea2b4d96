"""What the host makes of recorded columns: the derived series, and the rows the detectors read. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from stablessm_core import formulas
from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Detectors, LayerRows, Rows, Values


@dataclass(frozen=True)
class MapForm:
    """A reparameterisation by its numbers: `formulas` needs no more."""

    name: str
    time: str
    a: float
    b: float

    def derived(self, weight: np.ndarray, dt: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """Eigenvalue lambda_bar and boundary distance 1 - |lambda_bar|, float32 in the shape of `weight`."""
        forms: dict[str, Any] = {"dt": dt, "a": self.a, "b": self.b}
        with np.errstate(all="ignore"):  # a diverging run has infinities here; they are what is to be seen
            return (
                formulas.lambda_bar(self.name, self.time, weight, np, **forms),
                formulas.boundary_distance(self.name, self.time, weight, np, **forms),
            )


@dataclass(frozen=True)
class LayerForm:
    """One watched layer: number, parameter path, map; `wide` when only its quantiles and extremes are recorded."""

    index: int
    path: str
    form: MapForm
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
            of = {kind: columns.get(names.layer_series(layer.index, kind)) for kind in ("grad_over_weight", "weight", "dt")}
            weight = of["weight"]
            assert weight is not None
            eigenvalue, distance = layer.form.derived(weight, of["dt"])
            derived[names.layer_group(layer.index)] = np.concatenate([eigenvalue, distance], axis=1)
            ratio, state = columns[names.layer_series(layer.index, "grad_over_weight")], columns[f"state/{layer.index}"]
            layers.append(LayerRows(layer.index, layer.path, Values(ratio), Values(weight), Values(distance), Values(state)))
        return Rows(first_step, columns[names.TRAIN_LOSS][:, 0], columns["norms"], layers), derived

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
