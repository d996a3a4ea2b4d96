"""The records of a run: the watched weights of its layers. The id of a record is part of the names of its series."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from pydantic import ValidationError

from stablessm_core.spec.model import Model
from stablessm_core.telemetry.series import LAYER_GROUPS, MEASURED_GROUPS, layer_group, layer_of, source_group


@dataclass(frozen=True)
class LayersOfRun:
    """What is known about a run's layers before anything is recorded.

    model: the section `model` of a trained run's configuration; None for a reported run. reported: the layers that the program
    of a reported run described, each with its path and its width.
    """

    model: Mapping[str, Any] | None = None
    reported: Sequence[Mapping[str, Any]] = ()

    @classmethod
    def of(cls, kind: str, model: Mapping[str, Any] | None, layers: Sequence[Mapping[str, Any]] | None) -> LayersOfRun:
        """From a run's kind, the section `model` of its configuration, and its column `layers`."""
        return cls(None, layers or ()) if kind == "reported" else cls(model or {})


@dataclass(frozen=True)
class RecordOfLayer:
    """A record in the catalogue. Its id is "0" for the eigenvalues of the first layer, and for example "0.dt_bias" for another
    weight of that layer.

    name: the kind of layer, such as "mamba", or the path of a reported layer in its model; "" if this version does not support
    the layer.
    eigenvalues: the number of eigenvalues; None if only some eigenvalues are recorded and the total is unknown.
    form: the layer's form as plain data.
    kinds: the kinds of series that belong to the record; empty before the run starts.
    gates: the number of gates that the eigenvalues share; None if the layer has no gate.
    module, note: the class of a reported layer's module, and what its program says about the layer; None if unknown.
    """

    id: str
    layer: int
    name: str
    eigenvalues: int | None
    form: dict[str, Any] | None
    kinds: tuple[str, ...]
    gates: int | None = None
    module: str | None = None
    note: str | None = None

    @property
    def first(self) -> bool:
        """True if this is the record of the layer's eigenvalues."""
        return self.id == str(self.layer)


def records_of(series: Iterable[tuple[str, str, int, dict[str, Any] | None]], layers: LayersOfRun) -> list[RecordOfLayer]:
    """The records in a catalogue, in the order of the layers; before the run starts, the records that its configuration or its
    program implies.

    series: (name, group, width, form) of each series.
    """
    known = _known(layers)
    found: dict[str, dict[str, tuple[int, Any]]] = {}
    for name, group, width, form in series:
        if group.startswith(LAYER_GROUPS) and layer_of(group) is not None:
            found.setdefault(_id(group), {})[name.rpartition("/")[2]] = width, form
    if not found:
        return [RecordOfLayer(str(i), i, of.name, of.width, None, (), None, of.module, of.note) for i, of in enumerate(known)]
    records = []
    for id_, kinds in found.items():
        layer = layer_of(layer_group(id_)) or 0
        of = known[layer] if layer < len(known) else _Known("", None)
        form = next((form for _, form in kinds.values() if form is not None), None)
        count = kinds["weight"][0] if "weight" in kinds else None
        if count is None and id_ == str(layer):
            count = of.width
        gates = kinds["gate_mean"][0] if "gate_mean" in kinds else None
        records.append(RecordOfLayer(id_, layer, of.name, count, form, tuple(kinds), gates, of.module, of.note))
    return sorted(records, key=lambda record: (record.layer, record.id))


def _id(group: str) -> str:
    return source_group(group).removesuffix(MEASURED_GROUPS).removeprefix(LAYER_GROUPS)


class _Known(NamedTuple):
    name: str
    width: int | None
    module: str | None = None
    note: str | None = None


def _known(layers: LayersOfRun) -> list[_Known]:
    """What is known about each layer; empty if this version does not support a layer."""
    if layers.model is None:
        return [
            _Known(str(layer.get("path") or layer.get("name") or ""), layer.get("width"), layer.get("name"), layer.get("note"))
            for layer in layers.reported
        ]
    try:  # another version may have trained a layer that this version does not support
        known = Model.model_validate(layers.model)
    except ValidationError:
        return []
    return [_Known(section.name, section.eigenvalues(known.d_model)) for section in known.sections()]
