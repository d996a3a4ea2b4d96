"""Small state-space models as users write them, with class and parameter names that `stablessm.watch` knows."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def _scan(decay: Tensor, driven: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + driven_t over the second axis; decay and driven (batch, length, ...)."""
    h, states = torch.zeros_like(driven[:, 0]), []
    for t in range(driven.shape[1]):
        h = decay[:, t] * h + driven[:, t]
        states.append(h)
    return torch.stack(states, 1)


class LRU(nn.Module):
    """Complex eigenvalues exp(-e^nu_log + i e^theta_log)."""

    def __init__(self, width: int, states: int = 6) -> None:
        super().__init__()
        self.nu_log = nn.Parameter(torch.log(torch.linspace(0.02, 0.7, states)))
        self.theta_log = nn.Parameter(torch.log(torch.linspace(0.1, 2.0, states)))
        self.into = nn.Parameter(torch.randn(states, width) / math.sqrt(width))
        self.out = nn.Parameter(torch.randn(width, states) / math.sqrt(states))

    def forward(self, x: Tensor) -> Tensor:
        size = torch.exp(-torch.exp(self.nu_log))
        lambda_ = torch.polar(size, torch.exp(self.theta_log))
        driven = ((1 - size**2).sqrt() * (x @ self.into.T)).to(lambda_.dtype)
        h = _scan(lambda_.expand(*driven.shape), driven)
        return (h @ self.out.T.to(h.dtype)).real


class S4DKernel(nn.Module):
    """Per-channel diagonal modes with step sizes; computed step by step."""

    def __init__(self, width: int, states: int = 4) -> None:
        super().__init__()
        self.log_A_real = nn.Parameter(torch.log(0.5 * torch.ones(width, states)))
        self.A_imag = nn.Parameter(math.pi * torch.arange(states).float().repeat(width, 1))
        self.log_dt = nn.Parameter(torch.linspace(math.log(0.01), math.log(0.2), width))
        self.mix = nn.Parameter(torch.randn(width, states) / states)

    def forward(self, x: Tensor) -> Tensor:
        dt = torch.exp(self.log_dt)[:, None]
        rate = torch.complex(-torch.exp(self.log_A_real), self.A_imag) * dt
        lambda_ = torch.exp(rate)
        driven = ((lambda_ - 1) / rate * dt) * x[..., None].to(lambda_.dtype)
        h = _scan(lambda_.expand(*driven.shape), driven)
        return 2 * (h * self.mix).sum(-1).real


class Mamba(nn.Module):
    """A selective recurrence: A_log, and step sizes from the input."""

    def __init__(self, width: int, states: int = 4) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, states + 1.0)).repeat(width, 1))
        self.dt_proj = nn.Linear(2, width)
        self.inside = nn.Linear(width, 2 + 2 * states)
        with torch.no_grad():
            self.dt_proj.bias.copy_(torch.linspace(-4, -1, width))
        self.states = states

    def forward(self, x: Tensor) -> Tensor:
        low, b, c = self.inside(x).split((2, self.states, self.states), -1)
        dt = nn.functional.softplus(self.dt_proj(low))
        decay = torch.exp(-dt[..., None] * torch.exp(self.A_log))
        h = _scan(decay, (dt * x)[..., None] * b[:, :, None])
        return (h * c[:, :, None]).sum(-1) + x  # type: ignore[no-any-return]


class RGLRULike(nn.Module):
    """A real decay sigmoid(w), declared with `stablessm.eigenvalues`, because no table knows it."""

    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 4.0, states))
        self.into, self.out = nn.Linear(width, states), nn.Linear(states, width)

    def forward(self, x: Tensor) -> Tensor:
        lambda_ = torch.sigmoid(self.decay)
        driven = (1 - lambda_) * self.into(x)
        return self.out(torch.tanh(_scan(lambda_.expand(*driven.shape), driven)))  # type: ignore[no-any-return]


class PlainSSM(nn.Module):
    """A real decay that is the weight itself, declared with `stablessm.eigenvalues`: nothing keeps it stable."""

    def __init__(self, width: int, states: int = 8) -> None:
        super().__init__()
        self.decay = nn.Parameter(torch.linspace(0.5, 0.95, states))
        self.into, self.out = nn.Linear(width, states), nn.Linear(states, width)

    def forward(self, x: Tensor) -> Tensor:
        driven = 0.3 * self.into(x)
        return self.out(_scan(self.decay.expand(*driven.shape), driven))  # type: ignore[no-any-return]


MODELS = {"LRU": LRU, "S4DKernel": S4DKernel, "Mamba": Mamba, "RGLRULike": RGLRULike, "PlainSSM": PlainSSM}
DECLARED = {"RGLRULike": ("sigmoid", "discrete"), "PlainSSM": ("direct", "discrete")}


class Stack(nn.Module):
    """Encoder, layers with residuals and norms, decoder."""

    def __init__(self, name: str, layers: int, width: int = 6) -> None:
        super().__init__()
        self.encoder, self.head = nn.Linear(1, width), nn.Linear(width, 1)
        self.layers = nn.ModuleList(MODELS[name](width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        features = self.encoder(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            features = features + layer(norm(features))
        return self.head(features)  # type: ignore[no-any-return]
