"""What is watched in a model. Any layer is watched the same way: it announces its weights and their form through `Watchable`;
nothing else about it is known here, nor in the probe, the recorder, the server or a chart.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from torch import Tensor, nn

from stablessm_core.forms import Form
from stablessm_core.telemetry import series as names


@dataclass(frozen=True)
class Watched:
    """One group of eigenvalues: the trainable `weight` w of shape (d_state,), and the form by which its eigenvalues follow.

    log_dt: logarithms of the step sizes, where the form says that they are recorded as "dt".
    """

    weight: nn.Parameter
    form: Form
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
            if (watched.log_dt is None) == ("dt" in watched.form.inputs):
                raise ValueError(f"watched weight {watched.name!r} has dt {watched.form.dt!r}; needs log_dt exactly for 'dt'")
            wide = watched.weight.numel() > names.WIDE and not all_eigenvalues
            layers.append(WatchedLayer(len(layers), module, watched, paths.get(id(watched.weight), watched.name), wide))
    return layers
