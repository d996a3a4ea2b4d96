"""Lists the maps that a layer can have: a map is possible if the configuration accepts it. Does not import torch."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

from pydantic import ValidationError

from stablessm_core.maps import MAPS
from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.layers.stable_ssm import StableSsm
from stablessm_core.spec.model import Model

WIDTHS = (16, 32, 64, 128, 256)  # a small model uses the smallest width that its layer accepts


@dataclass(frozen=True)
class PossibleMap:
    """A map that a layer can have.

    b: the value that `best` needs if it cannot reach the initial eigenvalues with the default b; otherwise None.
    """

    name: str
    time: str
    b: float | None = None


def possible_maps(section: LayerSection, d_model: int = 64) -> list[PossibleMap]:
    """The maps that a layer with these options can have at this width, in the order of MAPS; empty if the layer has no map."""
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
    """The complete section of a model's first layer. Raises ValueError if the configuration refuses the model."""
    return Model.model_validate(model).sections()[0]


def options_of(section: type[LayerSection]) -> list[tuple[str, Any]]:
    """The pairs (option, value) of every option that has a short list of values. Default values are left out.

    The name of a nested section is written as, for example, "inner.name".
    """
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
    """The section `model` of a quick run: this layer with its default options and map, as narrow as possible."""
    sizes = {"d_state": 16} if name == "stable_ssm" else {}
    section = LAYERS[name].model_validate({"name": name})
    width = next(width for width in WIDTHS if _fits(section, width))
    return {"layer": name, "d_model": width, **sizes}


def _smaller_b(section: LayerSection, d_model: int) -> float | None:
    """Half of the largest b with which `best`, -1 / (a w^2 + b), reaches the fastest initial rate; None if every b reaches it.

    The largest b itself would need a weight of 0.
    """
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
