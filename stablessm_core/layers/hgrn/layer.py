"""HGRN (arXiv 2311.04823, sections 3.1 to 3.3; public code: fla-org/flash-linear-attention, fla/layers/hgrn.py)."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.differentiation import transformed
from stablessm_core.forms import Form
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.gates import decay_of, gate_statistics
from stablessm_core.layers.hgrn.section import Hgrn
from stablessm_core.scan import linear_scan
from stablessm_core.telemetry.watch import Record


class HGRN(nn.Module):
    """W_o (norm(h_t) * silu(W_g x_t)), (batch, length, d_model) to the same, with

        h_t = f_t h_{t-1} + (1 - f_t) silu(W_i x_t),   f_t = b + (1 - b) sigmoid(W_f x_t),

    `expand` states per feature; norm is an RMS norm with weights. The input decides the eigenvalue f_t, above the lower bound b.

    Published b is made of one matrix for the whole model: of l layers, layer i has the sum of its softmax over layers, from the
    second to the i-th. A layer knows no more than its place, and has a row of its own: b = sigmoid(gamma + ln(i / (l - i))), the
    softmax of the first i layers together against the others. With gamma = 0 at the start that is the published i / l, with as
    many weights, and each bound can reach what it could. What is lost: the bounds of layers no longer move together, and while
    they train a deeper layer's may fall below an earlier one's. b = 0 in the first layer: there gamma has no effect, nor has it
    in a published model of one layer.

    Parameters: input, forget, gate (expand * d_model, d_model) and output (d_model, expand * d_model) without biases, as
    `nn.Linear` starts; norm.weight and gamma (expand * d_model,). The recurrence runs in their dtype even under autocast.
    """

    last_state: Tensor | None  # (batch, expand * d_model), detached

    def __init__(self, d_model: int, expand: int = 1, *, index: int = 0, n_layers: int = 1, scan_backend: str = "auto") -> None:
        super().__init__()
        if not 0 <= index < n_layers:
            raise ValueError(f"index is {index} of {n_layers} layers; needs 0 <= index < n_layers")
        width = expand * d_model
        self.offset = math.log(index / (n_layers - index)) if index else -math.inf
        self.scan_backend = scan_backend
        self.last_state = None
        self._gates: dict[str, Tensor] = {}
        self.input = nn.Linear(d_model, width, bias=False)
        self.forget = nn.Linear(d_model, width, bias=False)
        self.gate = nn.Linear(d_model, width, bias=False)
        self.output = nn.Linear(width, d_model, bias=False)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.gamma = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        forgotten, driven = self._selected(x)
        with torch.autocast(x.device.type, enabled=False):
            h = linear_scan(1 - forgotten, driven, backend=self.scan_backend)
        if transformed():
            self.last_state = None
        else:
            self.last_state, self._gates = h[:, -1].detach().clone(), {"decay": gate_statistics(decay_of(forgotten))}
        return self._read(h, x)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state (batch, expand * d_model) -> (y_t, next state)."""
        forgotten, driven = self._selected(x_t)
        h = (1 - forgotten) * state + driven
        return self._read(h, x_t), h

    def initial_state(self, batch: int) -> Tensor:
        return self.gamma.new_zeros(batch, len(self.gamma))

    def lower_bound(self) -> Tensor:
        """b, (expand * d_model,)."""
        return torch.sigmoid(self.gamma + self.offset)

    def records(self) -> list[Record]:
        form = Form("gate", "discrete", "none", gate=True)
        records = [Record(form, rows=tuple(self.forget.parameters()), gate="decay", gates=len(self.gamma))]
        if self.offset > -math.inf:  # gradient: gamma starts at 0
            records.append(Record(Form("none", "discrete", "none"), self.gamma, gradient=True, name="lower_bound"))
        return records

    def gates(self) -> dict[str, Tensor]:
        return self._gates

    def _selected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """1 - f and (1 - f) silu(W_i x), in the recurrence's dtype."""
        dtype = self.gamma.dtype
        forgotten = (1 - self.lower_bound()) * torch.sigmoid(-self.forget(x).to(dtype))  # f next to 1 has lost what 1 - f is
        return forgotten, forgotten * functional.silu(self.input(x).to(dtype))

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        y: Tensor = self.output(self.norm(h) * functional.silu(self.gate(x)))
        return y


def build(section: Hgrn, given: Surroundings) -> HGRN:
    return HGRN(given.d_model, section.expand, index=given.index, n_layers=given.n_layers, scan_backend=given.scan_backend)
