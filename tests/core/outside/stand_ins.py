"""Modules with the class names, parameter names and shapes of other libraries, which are not installed here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn


class MambaMixer(nn.Module):
    """transformers' Mamba-1 mixer. As there, A_log[:, 0] is exactly 0 at the start."""

    def __init__(self, channels: int = 37, d_state: int = 5) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, d_state + 1.0)).repeat(channels, 1))
        self.dt_proj = nn.Linear(3, channels)
        self.out = nn.Linear(channels, 3)

    def forward(self, x: Tensor) -> Tensor:
        dt = nn.functional.softplus(self.dt_proj(x))
        decay = torch.exp(-dt[..., None] * torch.exp(self.A_log))
        return self.out(decay.sum(-1))


class Mamba2Mixer(nn.Module):
    """transformers' Mamba-2 mixer: one decay for each head."""

    def __init__(self, heads: int = 29, limit: tuple[float, float] = (0.0, float("inf"))) -> None:
        super().__init__()
        self.time_step_limit = limit
        self.A_log = nn.Parameter(torch.log(torch.arange(1, heads + 1.0)))
        self.dt_bias = nn.Parameter(torch.linspace(-2, 2, heads))
        self.inside, self.out = nn.Linear(3, heads), nn.Linear(heads, 3)

    def forward(self, x: Tensor) -> Tensor:
        dt = nn.functional.softplus(self.inside(x) + self.dt_bias).clamp(*self.time_step_limit)
        return self.out(torch.exp(-dt * torch.exp(self.A_log)))


def module(name: str, config: dict[str, object] | None = None, **parameters: Tensor | object) -> nn.Module:
    """A module of a class with this name. Tensors become parameters; a name with dots makes the modules in between."""
    made: nn.Module = type(name, (nn.Module,), {})()
    for path, value in parameters.items():
        *places, last = path.split("__")
        owner = made
        for place in places:
            if not hasattr(owner, place):
                owner.add_module(place, nn.Module())
            owner = getattr(owner, place)
        if isinstance(value, Tensor):
            owner.register_parameter(last, nn.Parameter(value))
        else:
            setattr(owner, last, value)
    if config is not None:
        made.config = SimpleNamespace(**config)
    return made


def model_of(layers: int, make: Any = lambda: Mamba2Mixer(16)) -> tuple[nn.Module, torch.optim.Optimizer]:
    """A model of several modules whose weights all have the gradient 0.001, and its optimizer."""
    model = nn.Sequential(*(make() for _ in range(layers)))
    for p in model.parameters():
        p.grad = torch.full_like(p, 1e-3)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)
