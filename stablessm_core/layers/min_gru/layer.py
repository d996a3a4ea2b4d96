"""minGRU (arXiv 2410.01201, appendix B.3; public code: lucidrains/minGRU-pytorch)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.differentiation import transformed
from stablessm_core.forms import Form
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.gates import gate_statistics
from stablessm_core.layers.min_gru.section import MinGru
from stablessm_core.scan import linear_scan
from stablessm_core.telemetry.watch import Record


class MinGRU(nn.Module):
    """h_t = (1 - z_t) h_{t-1} + z_t g(V x_t), z_t = sigmoid(W x_t), (batch, length, d_model) to the same; g(v) = v + 1/2 where
    v >= 0, sigmoid(v) elsewhere, so that every state is positive. With `expand` > 1 states per feature y = W_out h, else y = h.

    Published as a scan of logarithms, which loses digits with the length; this is the same recurrence as it stands. The input
    decides the eigenvalue 1 - z_t: what is watched is the row of W that it does so by.

    Parameters: gate, candidate (expand * d_model, d_model) and out_proj, without biases, as `nn.Linear` starts. The recurrence
    runs in their dtype even under autocast.
    """

    last_state: Tensor | None  # (batch, expand * d_model), detached

    def __init__(self, d_model: int, expand: int = 1, *, scan_backend: str = "auto") -> None:
        super().__init__()
        self.scan_backend = scan_backend
        self.last_state = None
        self._gates: dict[str, Tensor] = {}
        self.gate = nn.Linear(d_model, expand * d_model, bias=False)
        self.candidate = nn.Linear(d_model, expand * d_model, bias=False)
        self.out_proj = nn.Linear(expand * d_model, d_model, bias=False) if expand > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        k, driven = self._selected(x)
        with torch.autocast(x.device.type, enabled=False):
            h = linear_scan(torch.sigmoid(-k), driven, backend=self.scan_backend)
        if transformed():
            self.last_state = None
        else:
            self.last_state = h[:, -1].detach().clone()
            self._gates = {"decay": gate_statistics(functional.softplus(k.detach()))}  # -ln(1 - sigmoid(k))
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

    def gates(self) -> dict[str, Tensor]:
        return self._gates

    def _selected(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the gate is the sigmoid of, and z g(V x), in the recurrence's dtype."""
        k, v = self.gate(x).to(self.gate.weight.dtype), self.candidate(x).to(self.gate.weight.dtype)
        return k, torch.sigmoid(k) * (functional.relu(v) + torch.sigmoid(v.clamp(max=0)))

    def _read(self, h: Tensor) -> Tensor:
        y: Tensor = h if self.out_proj is None else self.out_proj(h)
        return y


def build(section: MinGru, given: Surroundings) -> MinGRU:
    return MinGRU(given.d_model, section.expand, scan_backend=given.scan_backend)
