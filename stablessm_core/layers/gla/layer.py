"""Gated linear attention (GLA, arXiv 2312.06635, section 4.4; public form: fla, fla/layers/gla.py)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.differentiation import transformed
from stablessm_core.forms import Form
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.gates import gate_statistics
from stablessm_core.layers.gla.section import RANK, Gla
from stablessm_core.layers.normalisation import GatedRMSNorm
from stablessm_core.matrix_state import step, vector_decay
from stablessm_core.telemetry.watch import Record

TEMPERATURE = 16.0  # alpha = sigmoid(z)^(1/16): a gate that starts near 1/2 forgets within some twenty steps, not one


class GatedLinearAttention(nn.Module):
    """W_o (norm(o) * silu(W_g x)) with o_t = S_t^T q_t / sqrt(keys), S_t = diag(alpha_t) S_{t-1} + k_t v_t^T in each head:
    (batch, length, d_model) to the same.

    q_t, k_t and v_t are linear in x_t, alpha_t = sigmoid(W_2 W_1 x_t + b)^{1/16} per key channel: no weight of its own decides an
    eigenvalue, but a row of W_2 with its bias.

    Parameters: q_proj, k_proj (heads keys, d_model), v_proj, g_proj, o_proj (d_model, d_model), gate_in (16, d_model), gate_out
    (heads keys, 16) with bias, norm (values,). A head has d_model / heads values and half as many keys, rounded up. The
    recurrence runs in the parameters' dtype even under autocast. scan_backend: as in `vector_decay`.
    """

    last_state: Tensor | None  # (batch, heads * keys), the largest |S| of each row after the last step of the last forward

    def __init__(self, d_model: int, n_heads: int = 4, *, scan_backend: str = "auto") -> None:
        super().__init__()
        if d_model % n_heads:
            raise ValueError(f"n_heads is {n_heads}; it must divide d_model = {d_model}")
        self.n_heads, self.scan_backend = n_heads, scan_backend
        self.last_state = None
        self._gates: dict[str, Tensor] = {}
        keys = n_heads * -(-d_model // (2 * n_heads))
        self.q_proj = nn.Linear(d_model, keys, bias=False)
        self.k_proj = nn.Linear(d_model, keys, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.g_proj = nn.Linear(d_model, d_model, bias=False)
        self.gate_in = nn.Linear(d_model, RANK, bias=False)
        self.gate_out = nn.Linear(RANK, keys)
        self.norm = GatedRMSNorm(d_model, d_model // n_heads)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        # as in berlino/gated_linear_attention
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.gate_in, self.gate_out):
            nn.init.xavier_uniform_(projection.weight, gain=2**-2.5)
        nn.init.xavier_uniform_(self.o_proj.weight, gain=2**-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, log_decay = self._heads(x)
        o, S = vector_decay(q, k, v, log_decay, backend=self.scan_backend)
        if transformed():
            self.last_state = None
        else:
            self.last_state = S.detach().abs().amax(3).flatten(1)
            self._gates = {"decay": gate_statistics(-log_decay)}
        out: Tensor = self.o_proj(self.norm(o.flatten(2), self.g_proj(x)))
        return out

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state S (batch, heads, keys, values) -> (out_t, next state)."""
        q, k, v, log_decay = self._heads(x_t)
        with torch.autocast(x_t.device.type, enabled=False):
            o, S = step(q, k, v, log_decay, state)
        return self.o_proj(self.norm(o.flatten(1), self.g_proj(x_t))), S

    def initial_state(self, batch: int) -> Tensor:
        heads = self.n_heads
        return self.norm.weight.new_zeros(batch, heads, self.q_proj.out_features // heads, self.v_proj.out_features // heads)

    def records(self) -> list[Record]:
        form = Form("gate", "discrete", "none", gate=True)
        return [Record(form, rows=tuple(self.gate_out.parameters()), gate="decay", gates=self.gate_out.out_features)]

    def gates(self) -> dict[str, Tensor]:
        return self._gates

    def extra_repr(self) -> str:
        return f"heads={self.n_heads}"

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the log decay, (..., heads, keys or values), in the recurrence's dtype."""
        dtype, heads = self.norm.weight.dtype, (self.n_heads, -1)
        q, k, v = (torch.unflatten(project(x).to(dtype), -1, heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        z = functional.linear(self.gate_in(x), self.gate_out.weight).to(dtype) + self.gate_out.bias
        log_decay = functional.logsigmoid(z) / TEMPERATURE
        return q * k.shape[-1] ** -0.5, k, v, torch.unflatten(log_decay, -1, heads)


def build(section: Gla, given: Surroundings) -> GatedLinearAttention:
    return GatedLinearAttention(given.d_model, section.n_heads, scan_backend=given.scan_backend)
