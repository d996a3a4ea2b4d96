"""From a layer's section of the configuration to the layer that runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import nn

from stablessm_core.layers.section import LayerSection
from stablessm_core.reparameterization import Reparameterization


@dataclass(frozen=True)
class Surroundings:
    """Where a layer stands and how it runs: what it is built with beside its own section.

    reparameterization: the map of its eigenvalues or rates, in the section's `map_time`; None where no map can be chosen.
    index, n_layers: its place in the model, from 0. scan_backend, fused: as in `train`.
    """

    d_model: int
    reparameterization: Reparameterization | None
    index: int = 0
    n_layers: int = 1
    scan_backend: str = "auto"
    fused: str = "auto"


def build_layer(section: LayerSection, given: Surroundings) -> nn.Module:
    """The layer, on the CPU, initialised from torch's global random state.

    (batch, length, d_model) to the same by `forward`; one step by `step(x_t, state)` from `initial_state(batch)`.
    """
    module, _, name = section.built_by.partition(":")
    builder: Callable[[Any, Surroundings], nn.Module] = getattr(import_module(module), name)
    return builder(section, given)
