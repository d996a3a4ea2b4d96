"""The records of a run: the watched weights of its layers. The id of a record is part of the names of its series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.model import Model
from stablessm_core.telemetry.series import LAYER_GROUPS, MEASURED_GROUPS, layer_group, layer_of, source_group


@dataclass(frozen=True)
class RecordOfLayer:
    """A record in the catalogue. Its id is "0" for the eigenvalues of the first layer, and for example "0.dt_bias" for another
    weight of that layer.

    name: the kind of layer, such as "mamba"; "" if this version does not support it.
    eigenvalues: the number of eigenvalues; None if only some eigenvalues are recorded and the total is unknown.
    form: the layer's form as plain data.
    kinds: the kinds of series that belong to the record; empty before the run starts.
    gates: the number of gates that the eigenvalues share; None if the layer has no gate.
    """

    id: str
    layer: int
    name: str
    eigenvalues: int | None
    form: dict[str, Any] | None
    kinds: tuple[str, ...]
    gates: int | None = None

    @property
    def first(self) -> bool:
        """True if this is the record of the layer's eigenvalues."""
        return self.id == str(self.layer)


def records_of(series: Iterable[tuple[str, str, int, dict[str, Any] | None]], model: Mapping[str, Any]) -> list[RecordOfLayer]:
    """The records in a catalogue, in the order of the layers; before the run starts, the records that its configuration implies.

    series: (name, group, width, form) of each series. model: the section `model` of the run's configuration.
    """
    sections, d_model = _sections(model)
    found: dict[str, dict[str, tuple[int, Any]]] = {}
    for name, group, width, form in series:
        if group.startswith(LAYER_GROUPS) and layer_of(group) is not None:
            found.setdefault(_id(group), {})[name.rpartition("/")[2]] = width, form
    if not found:
        return [_expected(i, section, d_model) for i, section in enumerate(sections)]
    records = []
    for id_, kinds in found.items():
        layer = layer_of(layer_group(id_)) or 0
        section = sections[layer] if layer < len(sections) else None
        form = next((form for _, form in kinds.values() if form is not None), None)
        count = kinds["weight"][0] if "weight" in kinds else None
        if count is None and section is not None and id_ == str(layer):
            count = section.eigenvalues(d_model)
        gates = kinds["gate_mean"][0] if "gate_mean" in kinds else None
        records.append(RecordOfLayer(id_, layer, section.name if section else "", count, form, tuple(kinds), gates))
    return sorted(records, key=lambda record: (record.layer, record.id))


def _expected(layer: int, section: LayerSection, d_model: int) -> RecordOfLayer:
    return RecordOfLayer(str(layer), layer, section.name, section.eigenvalues(d_model), None, ())


def _id(group: str) -> str:
    return source_group(group).removesuffix(MEASURED_GROUPS).removeprefix(LAYER_GROUPS)


def _sections(model: Mapping[str, Any]) -> tuple[list[LayerSection], int]:
    # another version may have trained a layer that this version does not support
    try:
        known = Model.model_validate(model)
    except ValidationError:
        return [], 0
    return known.sections(), known.d_model
