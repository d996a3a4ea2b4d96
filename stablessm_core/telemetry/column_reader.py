"""Turns recorded columns in host memory into derived series and into rows for the detectors. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from stablessm_core.telemetry import series as names
from stablessm_core.telemetry.detectors import Detectors, LayerRows, Rows, Values
from stablessm_core.telemetry.forms import Form, spread


@dataclass(frozen=True)
class LayerForm:
    """One watched record of a layer, without its tensors.

    index: the layer's number. path: the parameter's path in the model. width: the number of eigenvalues. wide: True if only
    quantiles and extremes are recorded. record: the record's name, "" for the layer's own eigenvalues. paths: the paths of the
    step sizes ("dt") and of the second weights ("phase_weight"), if the record has them. assumed: True if only the names of the
    parameters suggest the form.
    """

    index: int
    path: str
    form: Form
    width: int
    wide: bool = False
    record: str = ""
    paths: Mapping[str, str] = field(default_factory=dict, compare=False)
    assumed: bool = field(default=False, compare=False)

    @cached_property
    def id(self) -> str:
        return f"{self.index}.{self.record}" if self.record else str(self.index)


class ColumnReader:
    """Reads the columns of consecutive training steps. Columns map a name to a float32 array (rows, width)."""

    def __init__(self, layers: list[LayerForm], detectors: Detectors) -> None:
        self.layers, self.detectors = layers, detectors
        self._stacks = stacked(layers)

    def read(self, first_step: int, columns: Mapping[str, np.ndarray]) -> tuple[Rows, dict[str, list[np.ndarray]]]:
        """The rows for the detectors, and the derived columns of each group, one array (rows, eigenvalues) per kind."""
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
                    state=Values(columns.get(names.state_column(layer.id), nothing)),
                    form=form,
                    recorded={kind: values[own] for kind, values in recorded.items()},
                    record=layer.record,
                    paths=layer.paths,
                    gradients=_gradients(layer, columns),
                    assumed=layer.assumed,
                )
        layers = [found[layer.id] for layer in self.layers]
        more = (names.BATCH_NONFINITE, names.LR, names.GRAD_NORM, names.WEIGHT_NORM, names.SKIPPED, names.SCALE)
        optional = (columns[name][:, 0] if name in columns else None for name in more)
        return Rows(first_step, columns[names.TRAIN_LOSS][:, 0], columns[names.NORMS], layers, *optional), derived

    def _wide(self, layer: LayerForm, columns: Mapping[str, np.ndarray]) -> LayerRows:
        def of(kind: str) -> np.ndarray:
            return columns[names.layer_series(layer.id, kind)]

        ratio = Values(of("grad_over_weight_largest"), of("grad_over_weight_largest_index"))
        nothing = Values(np.empty((len(ratio.values), 0), np.float32))
        weight = distance = nothing
        if layer.form.map != "none":
            smallest_at = of("boundary_distance_smallest_index")
            weight = Values(columns[names.weight_at_column(layer.id)], smallest_at)
            distance = Values(of("boundary_distance_smallest"), smallest_at)
        states = (names.state_column(layer.id), names.state_at_column(layer.id))
        state = Values(*(columns[name] for name in states)) if states[0] in columns else nothing
        return LayerRows(
            layer.index, layer.path, ratio=ratio, weight=weight, distance=distance, state=state, record=layer.record,
            assumed=layer.assumed,
        )  # fmt: skip


def _gradients(layer: LayerForm, columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """See `LayerRows.gradients`. Eigenvalues that share a step size have the same gradient of the step size."""
    places = {
        "weight": names.layer_series(layer.id, "gradient"),
        "phase_weight": names.layer_series(layer.id, "grad_over_phase"),
        "dt": names.step_gradient_column(layer.id),
    }
    return spread({kind: columns[name] for kind, name in places.items() if name in columns}, layer.width, axis=1)


def stacked(layers: Sequence[LayerForm]) -> list[list[LayerForm]]:
    """The layers grouped by form and width. The derived columns of a group are computed together. A wide layer (see
    `LayerForm.wide`) is a group of its own."""
    stacks: dict[tuple[Form, int, str], list[LayerForm]] = {}
    for layer in layers:
        stacks.setdefault((layer.form, layer.width, layer.id if layer.wide else ""), []).append(layer)
    return list(stacks.values())


def recorded_of(stack: Sequence[LayerForm], columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The recorded inputs of the layers' common form, each (rows, layers x eigenvalues). A step size or gate that several
    eigenvalues share is repeated for each of them."""
    form, width = stack[0].form, stack[0].width
    parts = [
        spread({kind: columns[names.layer_series(layer.id, kind)] for kind in form.inputs}, width, axis=1) for layer in stack
    ]
    if len(parts) == 1:
        return parts[0]
    return {kind: np.concatenate([part[kind] for part in parts], axis=1) for kind in form.inputs}
