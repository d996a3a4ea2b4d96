"""The recurrent block of Hawk and Griffin, which contains the RG-LRU.

arXiv 2402.19427, sections 2.3 and 2.4; google-deepmind/recurrentgemma, recurrentgemma/torch.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.short_convolution import ShortConvolution
from stablessm_core.numerics.differentiation import elementwise
from stablessm_core.reparameterization import Reparameterization, get_reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.rg_lru import LARGEST_RADIUS, SMALLEST_RADIUS, TAPS, RgLru
from stablessm_core.watch.watchable import Record

SHARPNESS = 8.0  # the paper's c, the maximum factor of the decay rate
STEEPEST = 1000.0  # maximum of the derivative of sqrt(1 - a^2), which is infinite at a = 1 and is clipped as published

# the last inputs of the convolution; h (batch, channels); a flag (batch, 1), which is 1 after the first step
State = tuple[Tensor, Tensor, Tensor]


class HawkBlock(WatchedLayer):
    """W_out (h_t * gelu(W_y u_t + b_y)) with one state per channel of x = conv4(W_x u + b_x):

        h_t = a_t h_{t-1} + sqrt(1 - a_t^2) i_t x_t,   a_t = exp(8 r_t f(w)),   h_1 = i_1 x_1.

    Input and output are (batch, length, d_model). The gates r_t, i_t = sigmoid(W x_t + b) have block-diagonal matrices W with
    `heads` blocks. The published map is f(w) = -ln(1 + e^w); it is used if `reparameterization` is None. The derivative of the
    square root is clipped, as published. If a map lets a_t exceed 1, the root is 0.

    Parameters: in_x, in_y (channels, d_model), out_proj (d_model, channels), conv, each with a bias; gate_weight (2, heads,
    block, block) and gate_bias (2, channels), for r and i; w (channels,). Initial values as published: f(w) is ln R with R^2
    uniform in [0.9^2, 0.999^2], weights are normal, biases are 0, and the weights of W_out are smaller in models with more
    layers. The recurrence runs in the dtype of w even under autocast.
    """

    def __init__(
        self,
        d_model: int,
        channels: int | None = None,
        heads: int = 8,
        *,
        reparameterization: Reparameterization | None = None,
        n_layers: int = 1,
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(reparameterization or get_reparameterization("softplus", time="continuous"), scan_backend)
        channels = channels or d_model
        if channels % heads:
            raise ValueError(f"heads is {heads}; needs a divisor of the {channels} channels")
        self.in_x = nn.Linear(d_model, channels)
        self.in_y = nn.Linear(d_model, channels)
        self.conv = ShortConvolution(channels, TAPS)
        block = channels // heads
        self.gate_weight = nn.Parameter(torch.randn(2, heads, block, block) / math.sqrt(block))
        self.gate_bias = nn.Parameter(torch.zeros(2, channels))
        squared = SMALLEST_RADIUS**2 + (LARGEST_RADIUS**2 - SMALLEST_RADIUS**2) * torch.rand(channels, dtype=torch.float64)
        self.w = nn.Parameter(self.reparameterization.inverse(squared.log() / 2).float())
        self.out_proj = nn.Linear(channels, d_model)
        for linear, variance in ((self.in_x, 1 / d_model), (self.in_y, 1 / d_model), (self.out_proj, 2 / n_layers / channels)):
            nn.init.normal_(linear.weight, std=math.sqrt(variance))
        nn.init.normal_(self.conv.weight, std=math.sqrt(0.01 / TAPS))
        for name, parameter in self.named_parameters():
            if name.endswith(".bias"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor) -> Tensor:
        driving = self.conv(self.in_x(x))
        r, i = self._gates_of(driving)
        with self.full_precision(x):
            h = _states(r, i * driving.to(i.dtype), self.reparameterization(self.w), self.scan_backend)
        self.watch(h[:, -1].detach().clone(), r=r)
        y: Tensor = self.out_proj(h * functional.gelu(self.in_y(x), approximate="tanh"))
        return y

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x_t (batch, d_model) -> (y_t, next state)."""
        before, h, begun = state
        driving, before = self.conv.step(self.in_x(x_t), before)
        r, i = self._gates_of(driving)
        with self.full_precision(x_t):
            log_a = SHARPNESS * r * self.reparameterization(self.w)
            h = log_a.exp() * h + torch.where(begun > 0, _gain(log_a), 1.0) * i * driving.to(i.dtype)
        y = self.out_proj(h * functional.gelu(self.in_y(x_t), approximate="tanh"))
        return y, (before, h, torch.ones_like(begun))

    def initial_state(self, batch: int) -> State:
        return self.conv.initial_state(batch), self.w.new_zeros(batch, len(self.w)), self.w.new_zeros(batch, 1)

    def recurrent(self, state: State) -> Tensor:
        return state[1]

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, scale=SHARPNESS, dt=None, gate=True)
        return [Record(form, self.w, gate="r", gates=len(self.w))]

    def _gates_of(self, driving: Tensor) -> tuple[Tensor, Tensor]:
        """r and i, each in the shape of `driving` and in the recurrence's dtype."""
        blocks = driving.view(*driving.shape[:-1], self.gate_weight.shape[1], -1)
        gates = torch.einsum("...hk,ghkj->g...hj", blocks, self.gate_weight).flatten(-2)
        r, i = torch.sigmoid(gates.to(self.w.dtype) + self.gate_bias.view(2, *[1] * (driving.dim() - 1), -1))
        return r, i


def _states(r: Tensor, driven: Tensor, lambda_: Tensor, backend: str) -> Tensor:
    """h of all steps, (batch, length, channels), from the gate r and driven = i x, which have the same shape."""
    log_a = SHARPNESS * r * lambda_
    gain = torch.cat(
        [torch.ones_like(r[:, :1]), _gain(log_a[:, 1:])], 1
    )  # the first step has no previous state, so the first input is not scaled
    return linear_scan(log_a.exp(), gain * driven, backend=backend)


def _gain(log_a: Tensor) -> Tensor:
    """sqrt(1 - a^2) without cancellation."""
    return elementwise(-torch.expm1(2 * log_a), _root, _slope_of_root)


def _root(x: Tensor) -> Tensor:
    return x.clamp(min=0).sqrt()


def _slope_of_root(x: Tensor, root: Tensor) -> Tensor:
    return torch.where(x < 0, 0.0, 0.5 / root.clamp(min=0.5 / STEEPEST))


def build(section: RgLru, given: Surroundings) -> HawkBlock:
    return HawkBlock(
        given.d_model,
        section.width,
        section.heads,
        reparameterization=given.reparameterization,
        n_layers=given.n_layers,
        scan_backend=given.scan_backend,
    )
