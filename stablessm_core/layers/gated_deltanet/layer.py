"""Gated DeltaNet (arXiv 2412.06464, section 3.4; public form: fla, fla/layers/gated_deltanet.py)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.differentiation import transformed
from stablessm_core.forms import Form
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.convolution import ShortConvolution
from stablessm_core.layers.gated_deltanet.section import FASTEST, SLOWEST, TAPS, GatedDeltaNet
from stablessm_core.layers.gates import gate_statistics
from stablessm_core.layers.normalisation import GatedRMSNorm
from stablessm_core.layers.step_sizes import softplus_bias
from stablessm_core.matrix_state import delta_rule, delta_step
from stablessm_core.reparameterization import Reparameterization, get_reparameterization
from stablessm_core.telemetry.watch import Record

State = tuple[Tensor, Tensor]  # the convolution's last inputs (batch, taps - 1, channels), S (batch, heads, keys, values)


class GatedDeltaNetBlock(nn.Module):
    """W_o (norm(o) * silu(W_g x)) with o_t = S_t^T q_t / sqrt(keys) in each head and

        S_t = e^{dt_t lambda} (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,  dt_t = softplus(W_dt x_t + b):

    (batch, length, d_model) to the same. (q, k, v) = silu(conv(W_qkv x)), q_t and k_t of length 1; beta_t = sigmoid(W_beta x_t),
    twice that with `allow_neg_eigval`. A step has the eigenvalue e^{dt_t lambda} for all keys but k_t, along which it is
    e^{dt_t lambda} (1 - beta_t). lambda = f(w), one per head; published f(w) = -e^w, which None is.

    Parameters: in_qkv ((2 + expand) heads head_width, d_model) and conv over them, without bias; in_dt, in_beta (heads, d_model),
    dt_bias, w (heads,); in_gate (expand heads head_width, d_model); norm (expand head_width,); out_proj (d_model, expand heads
    head_width). As published f(w) starts uniform in [-16, 0], kept from 0 by 0.01, and the steps of a silent input log-uniform in
    [0.001, 0.1].

    The recurrence runs in the dtype of w even under autocast. scan_backend: as in `delta_rule`.
    """

    last_state: Tensor | None  # (batch, heads), the largest |S| after the last step of the last forward

    def __init__(
        self,
        d_model: int,
        n_heads: int = 4,
        head_width: int = 16,
        expand: int = 2,
        *,
        allow_neg_eigval: bool = False,
        reparameterization: Reparameterization | None = None,
        scan_backend: str = "auto",
    ) -> None:
        super().__init__()
        keys, values = n_heads * head_width, n_heads * head_width * expand
        self.reparameterization = reparameterization or get_reparameterization("exp", time="continuous")
        self.largest_beta = 2.0 if allow_neg_eigval else 1.0
        self.scan_backend = scan_backend
        self.widths = [keys, keys, values]
        self.last_state = None
        self._gates: dict[str, Tensor] = {}
        self.in_qkv = nn.Linear(d_model, 2 * keys + values, bias=False)
        self.conv = ShortConvolution(2 * keys + values, TAPS, bias=False)
        self.in_dt = nn.Linear(d_model, n_heads, bias=False)
        self.in_beta = nn.Linear(d_model, n_heads, bias=False)
        self.dt_bias = nn.Parameter(softplus_bias(n_heads))
        lambda_ = (FASTEST * torch.rand(n_heads, dtype=torch.float64)).clamp(max=SLOWEST)
        self.w = nn.Parameter(self.reparameterization.inverse(lambda_).float())
        self.in_gate = nn.Linear(d_model, values, bias=False)
        self.norm = GatedRMSNorm(values, head_width * expand)
        self.out_proj = nn.Linear(values, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self._heads(functional.silu(self.conv(self.in_qkv(x))))
        dt, beta = self._dt_and_beta(x)
        with torch.autocast(x.device.type, enabled=False):
            o, S = delta_rule(q, k, v, beta, dt * self.reparameterization(self.w), backend=self.scan_backend)
        if transformed():
            self.last_state = None
        else:
            self.last_state = S.detach().abs().amax((2, 3))
            self._gates = {"dt": gate_statistics(dt)}
        out: Tensor = self.out_proj(self.norm(o.flatten(2), self.in_gate(x)))
        return out

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x_t (batch, d_model) -> (out_t, next state)."""
        before, S = state
        qkv, before = self.conv.step(self.in_qkv(x_t), before)
        q, k, v = self._heads(functional.silu(qkv))
        dt, beta = self._dt_and_beta(x_t)
        with torch.autocast(x_t.device.type, enabled=False):
            o, S = delta_step(q, k, v, beta, dt * self.reparameterization(self.w), S)
        return self.out_proj(self.norm(o.flatten(1), self.in_gate(x_t))), (before, S)

    def initial_state(self, batch: int) -> State:
        heads = len(self.w)
        return self.conv.initial_state(batch), self.w.new_zeros(batch, heads, self.widths[1] // heads, self.widths[2] // heads)

    def records(self) -> list[Record]:
        watched = Form("none", "discrete", "none")
        # gradient: under the published map the weight of an eigenvalue -1 is 0
        form = replace(self.reparameterization.form, dt=None, gate=True)
        return [
            Record(form, self.w, gate="dt", gates=len(self.w), gradient=True),
            Record(watched, self.dt_bias, name="dt_bias"),
            Record(watched, rows=tuple(self.in_beta.parameters()), name="beta"),
        ]

    def gates(self) -> dict[str, Tensor]:
        return self._gates

    def extra_repr(self) -> str:
        return f"heads={len(self.w)}, reparameterization={self.reparameterization.name}, beta<{self.largest_beta:g}"

    def _dt_and_beta(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dtype = self.w.dtype
        dt = functional.softplus(self.in_dt(x).to(dtype) + self.dt_bias)
        return dt, self.largest_beta * torch.sigmoid(self.in_beta(x).to(dtype))

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (..., heads, keys or values) in the recurrence's dtype."""
        q, k, v = (torch.unflatten(part, -1, (len(self.w), -1)) for part in torch.split(qkv.to(self.w.dtype), self.widths, -1))
        return _unit(q) * q.shape[-1] ** -0.5, _unit(k), v


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)  # smooth at 0, as in the public code


def build(section: GatedDeltaNet, given: Surroundings) -> GatedDeltaNetBlock:
    return GatedDeltaNetBlock(
        given.d_model,
        section.n_heads,
        section.head_width,
        section.expand,
        allow_neg_eigval=section.allow_neg_eigval,
        reparameterization=given.reparameterization,
        scan_backend=given.scan_backend,
    )
