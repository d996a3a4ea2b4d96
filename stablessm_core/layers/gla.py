"""Gated linear attention (GLA, arXiv 2312.06635, section 4.4).

Public code: fla-org/flash-linear-attention, fla/layers/gla.py.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.normalisation import GatedRMSNorm
from stablessm_core.matrix_state import step, vector_decay
from stablessm_core.spec.layers.gla import RANK, Gla
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record

TEMPERATURE = 16.0  # alpha = sigmoid(z)^(1/16): a gate that starts near 1/2 forgets in about twenty steps, not in one


class GatedLinearAttention(WatchedLayer):
    """W_o (norm(o) * silu(W_g x)) with o_t = S_t^T q_t / sqrt(keys), S_t = diag(alpha_t) S_{t-1} + k_t v_t^T in each head.

    Input and output are (batch, length, d_model). q_t, k_t and v_t are linear in x_t. Each key channel has a decay
    alpha_t = sigmoid(W_2 W_1 x_t + b)^{1/16}, so each eigenvalue depends on one row of W_2 and one entry of b.

    Parameters: q_proj, k_proj (heads keys, d_model), v_proj, g_proj, o_proj (d_model, d_model), gate_in (16, d_model), gate_out
    (heads keys, 16) with bias, norm (values,). A head has d_model / heads values and half as many keys, rounded up. The
    recurrence runs in the parameters' dtype even under autocast. scan_backend: as in `vector_decay`.
    """

    def __init__(self, d_model: int, n_heads: int = 4, *, scan_backend: str = "auto") -> None:
        super().__init__(scan_backend=scan_backend)
        if d_model % n_heads:
            raise ValueError(f"n_heads is {n_heads}; it must divide d_model = {d_model}")
        self.n_heads = n_heads
        keys = n_heads * -(-d_model // (2 * n_heads))
        self.q_proj = nn.Linear(d_model, keys, bias=False)
        self.k_proj = nn.Linear(d_model, keys, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.g_proj = nn.Linear(d_model, d_model, bias=False)
        self.gate_in = nn.Linear(d_model, RANK, bias=False)
        self.gate_out = nn.Linear(RANK, keys)
        self.norm = GatedRMSNorm(d_model, d_model // n_heads)
        self.o_proj = nn.Linear(d_model, d_model, bias=False)
        # Initial values as in fla-org/flash-linear-attention, commit 7d13c6f9. Since commit ee3860d2, o_proj also has
        # the gain 2^-2.5. The authors' own code (berlino/gated_linear_attention, commit 442e0969) changes only q, k and the gate.
        for projection in (self.q_proj, self.k_proj, self.v_proj, self.g_proj, self.gate_in, self.gate_out):
            nn.init.xavier_uniform_(projection.weight, gain=2**-2.5)
        nn.init.xavier_uniform_(self.o_proj.weight, gain=2**-1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v, log_decay = self._heads(x)
        o, S = vector_decay(q, k, v, log_decay, backend=self.scan_backend)
        self.watch(S.detach().abs().amax(3).flatten(1), decay=-log_decay.detach())
        out: Tensor = self.o_proj(self.norm(o.flatten(2), self.g_proj(x)))
        return out

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state S (batch, heads, keys, values) -> (out_t, next state)."""
        q, k, v, log_decay = self._heads(x_t)
        with self.full_precision(x_t):
            o, S = step(q, k, v, log_decay, state)
        return self.o_proj(self.norm(o.flatten(1), self.g_proj(x_t))), S

    def initial_state(self, batch: int) -> Tensor:
        heads = self.n_heads
        return self.norm.weight.new_zeros(batch, heads, self.q_proj.out_features // heads, self.v_proj.out_features // heads)

    def records(self) -> list[Record]:
        form = Form("gate", "discrete", "none", gate=True)
        return [Record(form, rows=tuple(self.gate_out.parameters()), gate="decay", gates=self.gate_out.out_features)]

    def _heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """q, k, v and the log decay, (..., heads, keys or values), in the recurrence's dtype."""
        dtype, heads = self.norm.weight.dtype, (self.n_heads, -1)
        q, k, v = (torch.unflatten(project(x).to(dtype), -1, heads) for project in (self.q_proj, self.k_proj, self.v_proj))
        z = functional.linear(self.gate_in(x), self.gate_out.weight).to(dtype) + self.gate_out.bias
        log_decay = functional.logsigmoid(z) / TEMPERATURE
        return q * k.shape[-1] ** -0.5, k, v, torch.unflatten(log_decay, -1, heads)


def build(section: Gla, given: Surroundings) -> GatedLinearAttention:
    return GatedLinearAttention(given.d_model, section.n_heads, scan_backend=given.scan_backend)
