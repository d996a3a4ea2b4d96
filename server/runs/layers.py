"""The layers of a run, from its stored configuration: older ones have fewer fields, some are of tasks or layers of elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from stablessm_core.config import Model


def layer_names(config: Mapping[str, Any]) -> list[str]:
    """The kind of each block's layer: one per section where `model.layers` lists them, else the one that all have."""
    model = config.get("model") or {}
    sections = model.get("layers") or [model.get("layer", "stable_ssm")]
    return [section["name"] if isinstance(section, Mapping) else section for section in sections]


def eigenvalues_per_layer(config: Mapping[str, Any]) -> int | None:
    """The most that one of its layers records; None for a layer that is not known here."""
    try:
        model = Model.model_validate(config.get("model") or {})
    except ValidationError:
        return None
    return max(section.eigenvalues(model.d_model) for section in model.sections())
