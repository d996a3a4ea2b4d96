"""Short descriptions of a run's layers, for lists. A stored configuration may lack newer fields or name layers that are not
installed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.model import Model


def eigenvalues_per_layer(config: Mapping[str, Any]) -> int | None:
    """The largest number of eigenvalues that a layer of the run records; None if a layer is not installed."""
    try:
        model = Model.model_validate(config.get("model") or {})
    except ValidationError:
        return None
    return max(section.eigenvalues(model.d_model) for section in model.sections())


def layer_label(config: Mapping[str, Any]) -> Any:
    """A short form of `model.layer`: the layer's name, or a section with its name and the options that differ from their
    defaults."""
    section = (config.get("model") or {}).get("layer", "stable_ssm")
    known = LAYERS.get(section["name"]) if isinstance(section, Mapping) else None
    if known is None:
        return section
    defaults = known.model_validate({"name": section["name"]}).model_dump(mode="json")
    changed = {option: value for option, value in section.items() if option == "name" or defaults.get(option) != value}
    return changed if len(changed) > 1 else section["name"]
