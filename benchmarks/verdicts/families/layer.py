"""The torch half of the plug-in layers `planted_<layer>`: a built-in layer whose forward pass has a fault in some steps.

The layer counts its training steps in a buffer, so that a resumed run and a replay have the fault in the same steps.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from benchmarks.verdicts.families.layer_sections import BUILT_IN
from benchmarks.verdicts.families.moments import Moment, is_active
from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings

LayerFault = Callable[[Any, Tensor, Tensor, Moment], Tensor]  # (layer, input, output, moment) -> output


def faults() -> dict[str, LayerFault]:
    """The table of layer faults."""
    from benchmarks.verdicts.families.held_out_parts import LAYER_FAULTS as HELD_OUT
    from benchmarks.verdicts.families.parts import LAYER_FAULTS

    return {**LAYER_FAULTS, **HELD_OUT}


def build(section: Any, given: Surroundings) -> WatchedLayer:
    """The built-in layer, as its own class, with the fault that the section describes."""
    base = BUILT_IN[section.name.removeprefix("planted_")]
    module, _, function = base.built_by.partition(":")
    layer: Any = getattr(import_module(module), function)(section, given)
    if section.fault == "none":
        fault: LayerFault = _no_fault
    else:
        fault = faults()[section.fault]
    own = type(layer)
    layer.__class__ = type(f"Planted{own.__name__}", (own,), {"forward": _forward_of(own), "residual": _no_residual})
    layer.register_buffer("trained_steps", torch.zeros((), dtype=torch.float64))
    layer.planted, layer.planted_fault = section, fault
    if (prepare := getattr(fault, "prepare", None)) is not None:
        prepare(layer)
    layer.register_forward_hook(_look)  # with a hook, the compiled kernels leave the layer to PyTorch
    return layer  # type: ignore[no-any-return]


def _no_fault(layer: Any, x: Tensor, y: Tensor, moment: Moment) -> Tensor:  # noqa: ARG001
    return y


def _no_residual(layer: Any, x: Tensor, norm: Any) -> None:
    """Without the compiled kernels, which would not call `forward`."""


def _look(layer: Any, given: Any, made: Any) -> None:
    """A hook that does nothing."""


def _forward_of(own: type) -> Callable[..., Any]:
    def forward(layer: Any, x: Tensor, *args: Any, **options: Any) -> Any:
        planted = layer.planted
        if layer.training and x.shape[1] > 1:
            layer.trained_steps += 1
        step = int(layer.trained_steps)
        layer.moment = Moment(step, planted.at, planted.size, layer.training)
        y = own.forward(layer, x, *args, **options)  # type: ignore[attr-defined]
        if not isinstance(y, Tensor) or not is_active(planted.how, step, planted.at, planted.period):
            return y
        return layer.planted_fault(layer, x, y, layer.moment)

    return forward
