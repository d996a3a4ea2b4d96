"""minGRU (arXiv 2410.01201, appendix B.3; public code: lucidrains/minGRU-pytorch)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.min_gru import MinGru
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record


class MinGRU(WatchedLayer):
    """h_t = (1 - z_t) h_{t-1} + z_t g(V x_t), z_t = sigmoid(W x_t). Input and output are (batch, length, d_model).

    g(v) is v + 1/2 for v >= 0 and sigmoid(v) elsewhere, so every state is positive. If there is more than one state per feature
    (`expand` > 1), the output is y = W_out h, otherwise y = h.

    The published code scans logarithms, which loses digits as sequences get longer. This layer computes the same recurrence
    directly. The input and a row of W determine each eigenvalue 1 - z_t; the norm of that row is recorded.

    Parameters: gate, candidate (expand * d_model, d_model) and out_proj, without biases, initialised as in `nn.Linear`. The
    recurrence runs in the parameters' dtype even under autocast.
    """

    def __init__(self, d_model: int, expand: int = 1, *, scan_backend: str = "auto") -> None:
        super().__init__(scan_backend=scan_backend)
        self.gate = nn.Linear(d_model, expand * d_model, bias=False)
        self.candidate = nn.Linear(d_model, expand * d_model, bias=False)
        self.out_proj = nn.Linear(expand * d_model, d_model, bias=False) if expand > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        k, driven = self._selected(x)
        with self.full_precision(x):
            h = linear_scan(torch.sigmoid(-k), driven, backend=self.scan_backend)
        self.watch(h[:, -1].detach().clone(), decay=functional.softplus(k.detach()))  # -ln(1 - sigmoid(k))
        return self._read(h)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state (batch, expand * d_model) -> (y_t, next state)."""
        k, driven = self._selected(x_t)
        h = torch.sigmoid(-k) * state + driven
        return self._read(h), h

    def initial_state(self, batch: int) -> Tensor:
        return self.gate.weight.new_zeros(batch, self.gate.out_features)

    def records(self) -> list[Record]:
        form = Form("gate", "discrete", "none", gate=True)
        return [Record(form, rows=tuple(self.gate.parameters()), gate="decay", gates=self.gate.out_features)]

    def _selected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """k, where z = sigmoid(k), and z g(V x), in the recurrence's dtype."""
        k, v = self.gate(x).to(self.gate.weight.dtype), self.candidate(x).to(self.gate.weight.dtype)
        return k, torch.sigmoid(k) * (functional.relu(v) + torch.sigmoid(v.clamp(max=0)))

    def _read(self, h: Tensor) -> Tensor:
        y: Tensor = h if self.out_proj is None else self.out_proj(h)
        return y


def build(section: MinGru, given: Surroundings) -> MinGRU:
    return MinGRU(given.d_model, section.expand, scan_backend=given.scan_backend)
