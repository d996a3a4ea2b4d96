"""Which maps a layer can have: what the configuration accepts, asked of the configuration itself. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from stablessm_core.config import Model
from stablessm_core.layers.registry import LAYERS
from stablessm_core.layers.section import LayerSection
from stablessm_core.layers.stable_ssm.section import StableSsm
from stablessm_core.maps import MAPS

WIDTHS = (16, 32, 64, 128, 256)  # of which the narrowest that a layer accepts is taken for a small model


@dataclass(frozen=True)
class PossibleMap:
    """A map that a layer can have. `b`: of `best`, where the default does not reach the layer's initial eigenvalues."""

    name: str
    time: str
    b: float | None = None


def possible_maps(section: LayerSection, d_model: int = 64) -> list[PossibleMap]:
    """The maps that a layer with these options can have at this width, in the order of MAPS; none where it has no map."""
    times: tuple[str, ...] = ("discrete", "continuous") if isinstance(section, StableSsm) else (section.map_time or "",)
    found = []
    for name, map_ in MAPS.items():
        for time in times:
            if time not in map_.forms:
                continue
            constants = (None, _smaller_b(section, d_model)) if name == "best" else (None,)
            b = next((b for b in constants if _accepted(section, d_model, name, time, b)), math.nan)
            if b is None or b > 0:
                found.append(PossibleMap(name, time, b))
    return found


def layer_of(model: dict[str, Any]) -> LayerSection:
    """The section of a model's first layer with nothing left open. Raises ValueError for what the configuration refuses."""
    return Model.model_validate(model).sections()[0]


def options_of(section: type[LayerSection]) -> list[tuple[str, Any]]:
    """(option, value) for every other value of the options that have few; "inner.name" of a section within."""
    found: list[tuple[str, Any]] = []
    for name, field in section.model_fields.items():
        if get_origin(field.annotation) is Literal:
            found += [(name, value) for value in get_args(field.annotation) if value != field.default]
        elif field.annotation is bool:
            found.append((name, not field.default))
        elif field.discriminator:
            usual = field.get_default(call_default_factory=True).name
            names = [part.model_fields["name"].default for part in get_args(field.annotation)]
            found += [(f"{name}.name", value) for value in names if value != usual]
    return found


def small_model(name: str) -> dict[str, Any]:
    """`model` of a configuration: this layer with its own options and map, as narrow as it can be for a quick run."""
    sizes = {"d_state": 16} if name == "stable_ssm" else {}
    section = LAYERS[name].model_validate({"name": name})
    width = next(width for width in WIDTHS if _fits(section, width))
    return {"layer": name, "d_model": width, **sizes}


def _smaller_b(section: LayerSection, d_model: int) -> float | None:
    """Half of the largest b whose `best`, -1 / (a w^2 + b), reaches the fastest initial rate: at the largest a weight is 0."""
    start = section.initial_range(d_model)
    if start is None or start[0] >= 0:
        return None
    return float(f"{-0.5 / start[0]:.1g}")


def _accepted(section: LayerSection, d_model: int, map_: str, time: str, b: float | None) -> bool:
    rep = {"name": map_, "time": time} | ({} if b is None else {"b": b})
    try:
        Model.model_validate({"layer": section.model_dump(), "d_model": d_model, "reparameterization": rep})
    except ValidationError:
        return False
    return True


def _fits(section: LayerSection, d_model: int) -> bool:
    try:
        Model.model_validate({"layer": section.model_dump(), "d_model": d_model})
    except ValidationError:
        return False
    return True
