"""All layers: the modules of this folder, and the layers of installed packages (entry points `stablessm.layers`).

docs/extending.md shows how to add a layer in either way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from stablessm_core.plugins import find_plug_ins
from stablessm_core.spec.layer import FAMILIES, LayerSection
from stablessm_core.spec.section import name_of, section_check, sections_in


def _position(section: type[LayerSection]) -> tuple[object, ...]:
    """Sort key: pages, forms and messages list the default layer first, then one family after the other, oldest paper first."""
    published = re.search(r"arXiv (\d{4}\.\d{5})", section.source)
    return (
        name_of(section) != "stable_ssm",
        FAMILIES.index(section.family),
        published is None,
        published[1] if published else name_of(section),
    )


# the sections, keyed by layer name, and the reason for each plug-in that cannot be used
LAYERS, REFUSED = find_plug_ins(
    "stablessm.layers",
    {name_of(section): section for section in sorted(sections_in(__name__, LayerSection), key=_position)},
    section_check(LayerSection, "built_by"),
)


def layer_names(model: Mapping[str, Any]) -> list[str]:
    """The names of a model's layers: one per block if `layers` lists them, otherwise the single layer of all blocks.

    model: the section `model` of a configuration.
    """
    sections = model.get("layers") or [model.get("layer", "stable_ssm")]
    return [section["name"] if isinstance(section, Mapping) else section for section in sections]


def layers_text(config: Mapping[str, Any]) -> str:
    """The names of the different layers of a run, as text for users: "mamba", or "lru, mamba". config: the run's
    configuration. A layer whose initial eigenvalues are outside the stability boundary is called "s4d (unstable start)"."""
    model = config.get("model") or {}
    sections = model.get("layers") or [model.get("layer", "stable_ssm")]
    return ", ".join(
        dict.fromkeys(
            name + " (unstable start)" * _starts_unstable(section)
            for name, section in zip(layer_names(model), sections, strict=True)
        )
    )


def starts_unstable(config: Mapping[str, Any]) -> bool:
    """True if a layer of the run is configured to start with eigenvalues outside the stability boundary."""
    model = config.get("model") or {}
    return any(_starts_unstable(section) for section in model.get("layers") or [model.get("layer")])


def _starts_unstable(section: Any) -> bool:
    if not isinstance(section, Mapping):
        return False
    return float(section.get("real_start") or 0) > 0 or _starts_unstable(section.get("inner"))
