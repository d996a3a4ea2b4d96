"""A network whose norms scale before they square.

A norm over features squares them. Above 1.8e19 the square no longer fits into float32, although the normalised result would.
These norms first divide each row by its largest magnitude if that is large. Elsewhere they compute what the network's own norms
compute.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from stablessm_core.layers.parts.normalisation import GatedRMSNorm
from stablessm_core.layers.stable_ssm import StableSSM
from stablessm_core.model import Block, Network

LARGE = 1e9  # rows with smaller magnitudes are not scaled; at this size eps makes no difference
UNCOMPILED = "torch"  # a scan backend for which the compiled kernels, which have norms of their own, are not used


class ScaledLayerNorm(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x / _scale(x))


class ScaledGatedRMSNorm(GatedRMSNorm):
    def _normalised(self, o: Tensor, weight: Tensor | None) -> Tensor:
        return super()._normalised(o / _scale(o), weight)


SCALED: dict[type[nn.Module], type[nn.Module]] = {nn.LayerNorm: ScaledLayerNorm, GatedRMSNorm: ScaledGatedRMSNorm}


def use_scaled_norms(network: Network) -> int:
    """Replace the norms of the network. Returns how many were replaced."""
    replaced = 0
    for module in network.modules():
        if (scaled := SCALED.get(type(module))) is not None:
            module.__class__ = scaled
            replaced += 1
        if isinstance(module, Block | Network):
            module.scan_backend = UNCOMPILED
        if isinstance(module, StableSSM):
            module.residual = _not_compiled  # type: ignore[method-assign,assignment]
    return replaced


def _not_compiled(_x: Tensor, _norm: nn.LayerNorm) -> None:
    return None


def _scale(x: Tensor) -> Tensor:
    """The largest magnitude of each row if it is large, otherwise 1; without a gradient, because the norm's result does not
    depend on it."""
    largest = x.detach().abs().amax(-1, keepdim=True)
    return torch.where(largest.isfinite() & (largest > LARGE), largest, torch.ones_like(largest))
