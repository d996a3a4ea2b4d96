"""A layer of ours and a public one that computes the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.layers.registry import LAYERS
from stablessm_core.reparameterization import get_reparameterization


@dataclass(frozen=True)
class Pair:
    """ours(x) is call(x), (batch, length, d_model) to the same, or is it `lag` steps later: some read a state before its update.

    theirs: the module that `call` runs. given: each of its weights, and what that is of ours.
    """

    ours: nn.Module
    theirs: nn.Module
    call: Callable[[Tensor], Tensor]
    given: dict[nn.Parameter, Tensor]
    lag: int = 0


def ours(name: str, d_model: int, **options: Any) -> Any:
    """The published layer, every weight moved a little from its start: many start at 0, and would hide what they multiply."""
    section = LAYERS[name].model_validate({"name": name, **options})
    time = "discrete" if name == "stable_ssm" else section.time_of_map()  # alone, it takes its time from the map
    map_ = get_reparameterization(section.native, time=time) if time else None
    layer = build_layer(section, Surroundings(d_model, map_, index=1, n_layers=2))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return layer


def give(module: nn.Module, weights: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
    """Copies each tensor into the parameter of `module` it stands beside; all must be given."""
    forgotten = [name for name, parameter in module.named_parameters() if parameter not in weights]
    if forgotten:
        raise ValueError(f"nothing is given for {', '.join(forgotten)} of {type(module).__name__}")
    given = {parameter: value.reshape(parameter.shape) for parameter, value in weights.items()}
    with torch.no_grad():
        for parameter, value in given.items():
            parameter.copy_(value)
    return given


def count(module: nn.Module) -> int:
    """Trained numbers, a complex one as two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in module.parameters())
