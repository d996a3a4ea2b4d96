"""HGRN (arXiv 2311.04823, sections 3.1 to 3.3; public code: fla-org/flash-linear-attention, fla/layers/hgrn.py)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.gates import decay_of
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.hgrn import Hgrn
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record


class HGRN(WatchedLayer):
    """W_o (norm(h_t) * silu(W_g x_t)), with input and output (batch, length, d_model), where

        h_t = f_t h_{t-1} + (1 - f_t) silu(W_i x_t),   f_t = b + (1 - b) sigmoid(W_f x_t).

    There are `expand` states per feature. norm is an RMS norm with weights. The eigenvalue f_t depends on the input and is at
    least the lower bound b.

    The paper computes b from one matrix for the whole model of l layers: layer i takes the softmax over layers and sums its
    second to i-th entries. In this implementation, each layer has its own vector gamma and knows only its own position i:
    b = sigmoid(gamma + ln(i / (l - i))). With the initial gamma = 0, b is the paper's i / l. The number of weights and the
    reachable bounds are the same as in the paper, but the bounds of different layers do not move together, and a deeper layer's
    bound may fall below an earlier layer's bound. In the first layer b = 0 and gamma has no effect, as in the published model
    with a single layer.

    Parameters: input, forget, gate (expand * d_model, d_model) and output (d_model, expand * d_model) without biases,
    initialised as in `nn.Linear`; norm.weight and gamma (expand * d_model,). The recurrence runs in the parameters' dtype, even
    under autocast.
    """

    def __init__(self, d_model: int, expand: int = 1, *, index: int = 0, n_layers: int = 1, scan_backend: str = "auto") -> None:
        super().__init__(scan_backend=scan_backend)
        if not 0 <= index < n_layers:
            raise ValueError(f"index is {index} of {n_layers} layers; needs 0 <= index < n_layers")
        width = expand * d_model
        self.offset = math.log(index / (n_layers - index)) if index else -math.inf
        self.input = nn.Linear(d_model, width, bias=False)
        self.forget = nn.Linear(d_model, width, bias=False)
        self.gate = nn.Linear(d_model, width, bias=False)
        self.output = nn.Linear(width, d_model, bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.gamma = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        forgotten, driven = self._selected(x)
        with self.full_precision(x):
            h = linear_scan(1 - forgotten, driven, backend=self.scan_backend)
        self.watch(h[:, -1].detach().clone(), decay=decay_of(forgotten))
        return self._read(h, x)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state (batch, expand * d_model) -> (y_t, next state)."""
        forgotten, driven = self._selected(x_t)
        h = (1 - forgotten) * state + driven
        return self._read(h, x_t), h

    def initial_state(self, batch: int) -> Tensor:
        return self.gamma.new_zeros(batch, len(self.gamma))

    def lower_bound(self) -> Tensor:
        """The lower bound b, (expand * d_model,)."""
        return torch.sigmoid(self.gamma + self.offset)

    def records(self) -> list[Record]:
        form = Form("gate", "discrete", "none", gate=True)
        records = [Record(form, rows=tuple(self.forget.parameters()), gate="decay", gates=len(self.gamma))]
        if self.offset > -math.inf:  # gradient=True because gamma starts at 0, so |gradient / weight| is infinite
            records.append(Record(Form("none", "discrete", "none"), self.gamma, gradient=True, name="lower_bound"))
        return records

    def _selected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """1 - f and (1 - f) silu(W_i x), in the recurrence's dtype."""
        dtype = self.gamma.dtype
        forgotten = (1 - self.lower_bound()) * torch.sigmoid(-self.forget(x).to(dtype))  # subtracting f from 1 would lose digits
        return forgotten, forgotten * functional.silu(self.input(x).to(dtype))

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.output(self.norm(h) * functional.silu(self.gate(x)))
        return y


def build(section: Hgrn, given: Surroundings) -> HGRN:
    return HGRN(given.d_model, section.expand, index=given.index, n_layers=given.n_layers, scan_backend=given.scan_backend)
