"""Builds the layer that a section of the configuration describes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.spec.layer import LayerSection


@dataclass(frozen=True)
class Surroundings:
    """The values that are needed to build a layer, in addition to the layer's own section.

    reparameterization: the map of the eigenvalues or rates, in the section's `map_time`; None if users cannot choose a map.
    index: the layer's position in the model, counted from 0. n_layers: the number of layers in the model. scan_backend, fused:
    as in the section `train`.
    """

    d_model: int
    reparameterization: Reparameterization | None
    index: int = 0
    n_layers: int = 1
    scan_backend: str = "auto"
    fused: str = "auto"


def build_layer(section: LayerSection, given: Surroundings) -> WatchedLayer:
    """The layer that a section describes, on the CPU, initialised from torch's global random state."""
    module, _, name = section.built_by.partition(":")
    build: Callable[[Any, Surroundings], object] = getattr(import_module(module), name)
    layer = build(section, given)
    if not isinstance(layer, WatchedLayer):
        raise TypeError(f"{section.built_by} gives a {type(layer).__name__}; needs a {WatchedLayer.__module__}.WatchedLayer")
    return layer
