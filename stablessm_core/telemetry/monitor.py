"""What the host makes of recorded columns: the derived series, and the rows the detectors read. No torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

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

    @cached_property
    def id(self) -> str:
        return f"{self.index}.{self.record}" if self.record else str(self.index)


class Monitor:
    """Reads the columns of consecutive training steps, as the recorder hands them over: name -> float32 (rows, width)."""

    def __init__(self, layers: list[LayerForm], detectors: Detectors) -> None:
        self.layers, self.detectors = layers, detectors
        self._stacks = stacked(layers)

    def read(self, first_step: int, columns: Mapping[str, np.ndarray]) -> tuple[Rows, dict[str, list[np.ndarray]]]:
        """The detectors' rows, and per group its derived columns, (rows, eigenvalues) of each kind."""
        found: dict[str, LayerRows] = {}
        derived: dict[str, list[np.ndarray]] = {}
        nothing = np.empty((len(columns[names.TRAIN_LOSS]), 0), np.float32)
        for stack in self._stacks:
            if stack[0].wide:
                found[stack[0].id] = self._wide(stack[0], columns)
                continue
            form, width = stack[0].form, stack[0].width
            recorded = recorded_of(stack, columns)
            of = form.derive_all(form.derived, recorded)
            for i, layer in enumerate(stack):
                own = np.s_[:, i * width : (i + 1) * width]
                if of:
                    derived[names.layer_group(layer.id)] = [values[own] for values in of.values()]
                found[layer.id] = LayerRows(
                    layer.index,
                    layer.path,
                    ratio=Values(columns.get(names.layer_series(layer.id, "grad_over_weight"), nothing)),
                    weight=Values(columns[names.layer_series(layer.id, "weight")]),
                    distance=Values(of["boundary_distance"][own] if of else nothing),
                    state=Values(columns.get(f"state/{layer.id}", nothing)),
                    form=form,
                    recorded={kind: values[own] for kind, values in recorded.items()},
                    record=layer.record,
                )
        layers = [found[layer.id] for layer in self.layers]
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


def stacked(layers: Sequence[LayerForm]) -> list[list[LayerForm]]:
    """Layers of one form and width together: what follows from their weights is computed at once. A wide one stays alone."""
    stacks: dict[tuple[Form, int, str], list[LayerForm]] = {}
    for layer in layers:
        stacks.setdefault((layer.form, layer.width, layer.id if layer.wide else ""), []).append(layer)
    return list(stacks.values())


def recorded_of(stack: Sequence[LayerForm], columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The inputs of the form that the layers share, (rows, layers x eigenvalues), a step size or gate that several eigenvalues
    share repeated for each."""
    form, width = stack[0].form, stack[0].width
    parts = [
        spread({kind: columns[names.layer_series(layer.id, kind)] for kind in form.inputs}, width, axis=1) for layer in stack
    ]
    if len(parts) == 1:
        return parts[0]
    return {kind: np.concatenate([part[kind] for part in parts], axis=1) for kind in form.inputs}
