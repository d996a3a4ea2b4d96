"""The records of a run: what is watched of its layers, each under the id by which its series are called."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from stablessm_core.config import Model
from stablessm_core.layers.section import LayerSection
from stablessm_core.telemetry.series import LAYER_GROUPS, MEASURED_GROUPS, layer_group, layer_of, source_group


@dataclass(frozen=True)
class RecordOfLayer:
    """A record as the catalogue has it: "0" of the first layer's own eigenvalues, "0.dt_bias" of further weights of that layer.

    name: what the layer is, "mamba"; "" where this version cannot tell. eigenvalues: None where only a part of them is recorded
    and their number is not known. form: as plain data. kinds: which series of it there are; none of a run that has not begun.
    gates: how many gates the eigenvalues share; None without a gate.
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
        """Whether it holds the eigenvalues of its layer."""
        return self.id == str(self.layer)


def records_of(series: Iterable[tuple[str, str, int, dict[str, Any] | None]], model: Mapping[str, Any]) -> list[RecordOfLayer]:
    """The records of a catalogue, (name, group, width, form) each, in the order of the layers; before the run has begun those of
    its configuration, without series. model: that part of the run's configuration."""
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
    # a layer that another program trained may be unknown here
    try:
        known = Model.model_validate(model)
    except ValidationError:
        return [], 0
    return known.sections(), known.d_model
