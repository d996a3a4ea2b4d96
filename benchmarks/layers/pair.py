"""A pair of layers that compute the same function: one of ours and a public one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stablessm_core.layers.building import Surroundings, build_layer
from stablessm_core.reparameterization import get_reparameterization
from stablessm_core.spec.layers import LAYERS


@dataclass(frozen=True)
class Pair:
    """Our layer and a public layer with the same weights, so that ours(x) equals call(x). Inputs and outputs have the shape
    (batch, length, d_model).

    lag: number of steps by which the public output is later than ours. Some public layers compute their output from the state
    before the update. theirs: the module that `call` runs. given: for each weight of `theirs`, the tensor of our layer that is
    copied into it.
    """

    ours: nn.Module
    theirs: nn.Module
    call: Callable[[Tensor], Tensor]
    given: dict[nn.Parameter, Tensor]
    lag: int = 0


def ours(name: str, d_model: int, **options: Any) -> Any:
    """Our layer with its published options. Every weight is perturbed, because many start at 0 and would hide errors."""
    section = LAYERS[name].model_validate({"name": name, **options})
    # stable_ssm supports discrete and continuous time, so choose one
    time = "discrete" if name == "stable_ssm" else section.time_of_map()
    map_ = get_reparameterization(section.native, time=time) if time else None
    layer = build_layer(section, Surroundings(d_model, map_, index=1, n_layers=2))
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return layer


def give(module: nn.Module, weights: dict[nn.Parameter, Tensor]) -> dict[nn.Parameter, Tensor]:
    """Copies each value of `weights` into the parameter that is its key. Raises ValueError if `module` has a parameter
    without a value."""
    forgotten = [name for name, parameter in module.named_parameters() if parameter not in weights]
    if forgotten:
        raise ValueError(f"nothing is given for {', '.join(forgotten)} of {type(module).__name__}")
    given = {parameter: value.reshape(parameter.shape) for parameter, value in weights.items()}
    with torch.no_grad():
        for parameter, value in given.items():
            parameter.copy_(value)
    return given


def count(module: nn.Module) -> int:
    """The number of trainable real numbers in a module. A complex number counts as two."""
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in module.parameters())
