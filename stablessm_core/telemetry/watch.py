"""What is watched in a model. Any layer is watched the same way: it announces its eigenvalue parameters through `Watchable`;
nothing else about it is known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from torch import Tensor, nn

from stablessm_core.telemetry import series as names

if TYPE_CHECKING:
    from stablessm_core.reparameterization import Reparameterization


@dataclass(frozen=True)
class Watched:
    """One group of eigenvalues: the trainable `weight` w of shape (d_state,), its map, and log step sizes in continuous time."""

    weight: nn.Parameter
    reparameterization: Reparameterization
    log_dt: nn.Parameter | None
    name: str  # of the weight inside its layer; alerts use the path inside the model where it is found


@runtime_checkable
class Watchable(Protocol):
    """A layer whose eigenvalues are recorded. `last_state`: (batch, d_state), detached, the final state of the last forward."""

    last_state: Tensor | None

    def watched(self) -> Watched: ...


@dataclass(frozen=True)
class WatchedLayer:
    """A watched layer of a model: its number in forward order, where its numbers come from, and its parameter path."""

    index: int
    module: Watchable
    watched: Watched
    path: str
    wide: bool

    @property
    def width(self) -> int:
        return self.watched.weight.numel()


def watched_layers(model: nn.Module, *, all_eigenvalues: bool = False) -> list[WatchedLayer]:
    """Every Watchable in `model`, in the order of its modules."""
    paths = {id(p): path for path, p in model.named_parameters()}
    layers: list[WatchedLayer] = []
    for module in model.modules():
        if isinstance(module, Watchable):
            watched = module.watched()
            if watched.weight.ndim != 1:
                raise ValueError(f"watched weight {watched.name!r} has shape {tuple(watched.weight.shape)}; needs (d_state,)")
            wide = watched.weight.numel() > names.WIDE and not all_eigenvalues
            layers.append(WatchedLayer(len(layers), module, watched, paths.get(id(watched.weight), watched.name), wide))
    return layers
