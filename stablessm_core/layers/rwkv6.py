"""The time mixing of RWKV-6 (Finch, arXiv 2404.05892; BlinkDL/RWKV-LM, RWKV-v5/src/model.py, x060)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.rwkv import current_share, depth, fraction, log_rates, token_shift, zigzag
from stablessm_core.map import saturated_exp
from stablessm_core.matrix_state import step, vector_decay
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.spec.layers.rwkv6 import LOG_RATES, Rwkv6
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record

NORM_EPS = 64e-5  # eps of the norm: the published 1e-5 times 8^2, because the published code divides the outputs by 8

State = tuple[Tensor, Tensor]  # x_{t-1} (batch, d_model), S (batch, heads, key, value)


class RWKV6(WatchedLayer):
    """y_t = W_o (norm(o_t) * silu(g_t)). In each head of size K, o_t = r_t (S_{t-1} + diag(u) k_t v_t^T) and

        S_t = diag(exp(s_t f(w))) S_{t-1} + k_t v_t^T,   s_t = exp(tanh(x^w_t W_1) W_2).

    Input and output are (batch, length, d_model). The state is read before it is written, so the current step has its own weight,
    the bonus u. The published map is f(w) = -e^w: with the gate s = e^lora, exp(s f(w)) is exactly the published decay
    exp(-exp(w + lora)). The five inputs are x^j_t = x_t + (x_{t-1} - x_t) (mu_j + lora_j) for j = w, k, v, r, g, where lora_j
    depends on the input itself (data-dependent token shift). norm is a group norm over each head. The other half of the published
    block, the channel mixing, is not part of the layer; the model's MLP replaces it.

    Parameters: w, u, mix_x (d_model,), mix (5, d_model) in the order w, k, v, r, g; receptance, key, value, gate, output
    (d_model, d_model); mix_down (5 mix_rank, d_model), mix_up (5, mix_rank, d_model); decay_down (decay_rank, d_model), decay_up
    (d_model, decay_rank); norm. As published, output, mix_down and decay_down are 0 initially, so s = 1. The recurrence runs in
    w's dtype even under autocast.
    """

    def __init__(
        self,
        d_model: int,
        head_size: int,
        *,
        reparameterization: Reparameterization,
        mix_rank: int = 32,
        decay_rank: int = 64,
        index: int = 0,
        n_layers: int = 1,
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(reparameterization, scan_backend)
        self.head_size = head_size
        rho = depth(index, n_layers)
        self.w = nn.Parameter(reparameterization.inverse(-log_rates(*LOG_RATES, d_model, rho).exp()).float())
        self.u = nn.Parameter((rho * (1 - fraction(d_model)) + 0.1 * zigzag(d_model)).float())
        share, half = (current_share(d_model, index, n_layers, power) for power in (1.0, 0.5))
        self.mix_x = nn.Parameter((1 - share).float())
        self.mix = nn.Parameter(1 - torch.stack([share, share, share + 0.3 * rho, half, half]).float())
        self.mix_down = nn.Linear(d_model, 5 * mix_rank, bias=False)
        self.mix_up = nn.Parameter(torch.empty(5, mix_rank, d_model).uniform_(-0.01, 0.01))
        self.decay_down = nn.Linear(d_model, decay_rank, bias=False)
        self.decay_up = nn.Parameter(torch.empty(d_model, decay_rank).uniform_(-0.01, 0.01))
        self.receptance, self.key, self.value, self.gate, self.output = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(5)
        )  # fmt: skip
        for linear, gain in ((self.receptance, 1.0), (self.key, 0.1), (self.value, 1.0), (self.gate, 0.1)):
            nn.init.orthogonal_(linear.weight, gain)
        for zero in (self.output, self.mix_down, self.decay_down):
            nn.init.zeros_(zero.weight)
        self.norm = nn.GroupNorm(d_model // head_size, d_model, eps=NORM_EPS)
        nn.init.constant_(self.norm.weight, ((1 + index) / n_layers) ** 0.7)

    def forward(self, x: Tensor) -> Tensor:
        r, k, v, s, g = self._projections(x, token_shift(x))
        with self.full_precision(x):
            o, S = vector_decay(r, k, v, self._log_decay(s), bonus=self._bonus(), backend=self.scan_backend)
        self.watch(S.detach().abs().amax(-1).flatten(1), decay=s)
        return self._out(o.flatten(2), g)

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x_t (batch, d_model) -> (y_t, next state)."""
        x_before, S = state
        r, k, v, s, g = (part.squeeze(1) for part in self._projections(x_t[:, None], x_before[:, None]))
        with self.full_precision(x_t):
            o, S = step(r, k, v, self._log_decay(s), S, bonus=self._bonus())
        return self._out(o.flatten(1), g), (x_t, S)

    def initial_state(self, batch: int) -> State:
        d_model, size = self.w.shape[0], self.head_size
        return self.w.new_zeros(batch, d_model), self.w.new_zeros(batch, d_model // size, size, size)

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, dt=None, gate=True)
        width = self.w.shape[0]
        return [
            Record(form, self.w, gate="decay", gates=width),
            Record(Form("none", "discrete", "none"), rows=(self.decay_up,), name="decay_up"),
        ]

    def _projections(self, x: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """r, k, v, s (batch, length, heads, head_size) in the recurrence's dtype, g (batch, length, d_model)."""
        change = before - x
        codes = torch.tanh(self.mix_down(x + change * self.mix_x)).unflatten(-1, (5, -1))  # type: ignore[no-untyped-call]
        shares = torch.einsum("btjr,jrd->jbtd", codes, self.mix_up) + self.mix[:, None, None]
        for_w, for_k, for_v, for_r, for_g = (x + change * shares).unbind(0)
        r, k, v = self.receptance(for_r), self.key(for_k), self.value(for_v)
        lora = functional.linear(torch.tanh(self.decay_down(for_w)), self.decay_up)
        s = saturated_exp(lora.to(self.w.dtype), torch)
        r, k, v, s = (part.to(self.w.dtype).view(*x.shape[:2], -1, self.head_size) for part in (r, k, v, s))
        return r, k, v, s, self.gate(for_g)

    def _log_decay(self, s: Tensor) -> Tensor:
        """ln lambda_bar_t = s_t f(w), in the shape of s."""
        return s * self.reparameterization(self.w).view(-1, self.head_size)

    def _bonus(self) -> Tensor:
        return self.u.view(-1, self.head_size)

    def _out(self, o: Tensor, g: Tensor) -> Tensor:
        norm = self.norm  # not called as a module, because nn.GroupNorm rejects a single step with one value per group
        normed = torch.group_norm(o.flatten(0, -2), norm.num_groups, norm.weight, norm.bias, norm.eps).view_as(o)
        y: Tensor = self.output(normed * functional.silu(g))
        return y


def build(section: Rwkv6, given: Surroundings) -> RWKV6:
    assert given.reparameterization is not None
    return RWKV6(
        given.d_model,
        section.size_of_head(given.d_model),
        reparameterization=given.reparameterization,
        mix_rank=section.mix_rank,
        decay_rank=section.decay_rank,
        index=given.index,
        n_layers=given.n_layers,
        scan_backend=given.scan_backend,
    )
