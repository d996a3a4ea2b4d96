"""What lists say of the layers of a run, from its stored configuration: some have fewer fields, some layers are of elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from stablessm_core.config import Model
from stablessm_core.layers.registry import LAYERS


def eigenvalues_per_layer(config: Mapping[str, Any]) -> int | None:
    """The most that one of its layers records; None for a layer that is not known here."""
    try:
        model = Model.model_validate(config.get("model") or {})
    except ValidationError:
        return None
    return max(section.eigenvalues(model.d_model) for section in model.sections())


def layer_said(config: Mapping[str, Any]) -> Any:
    """`model.layer` as short as it can be said: its name, with those options that are not as usual."""
    section = (config.get("model") or {}).get("layer", "stable_ssm")
    known = LAYERS.get(section["name"]) if isinstance(section, Mapping) else None
    if known is None:
        return section
    usual = known.model_validate({"name": section["name"]}).model_dump(mode="json")
    changed = {option: value for option, value in section.items() if option == "name" or usual.get(option) != value}
    return changed if len(changed) > 1 else section["name"]
