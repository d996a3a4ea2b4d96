"""Gated DeltaNet (arXiv 2412.06464, section 3.4; public code: fla-org/flash-linear-attention, fla/layers/gated_deltanet.py)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.normalisation import GatedRMSNorm
from stablessm_core.layers.parts.short_convolution import ShortConvolution
from stablessm_core.layers.parts.step_sizes import softplus_bias
from stablessm_core.matrix_state import delta_rule, delta_step
from stablessm_core.reparameterization import Reparameterization, get_reparameterization
from stablessm_core.spec.layers.gated_deltanet import FASTEST, SLOWEST, TAPS, GatedDeltaNet
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record

State = tuple[Tensor, Tensor]  # the convolution's last inputs (batch, taps - 1, channels), S (batch, heads, keys, values)


class GatedDeltaNetBlock(WatchedLayer):
    """W_o (norm(o) * silu(W_g x)) with o_t = S_t^T q_t / sqrt(keys) in each head and

        S_t = e^{dt_t lambda} (I - beta_t k_t k_t^T) S_{t-1} + beta_t k_t v_t^T,  dt_t = softplus(W_dt x_t + b).

    Input and output are (batch, length, d_model). (q, k, v) = silu(conv(W_qkv x)), with q_t and k_t scaled to norm 1.
    beta_t = sigmoid(W_beta x_t), doubled if `allow_neg_eigval` is true. The eigenvalue of a step is
    e^{dt_t lambda} (1 - beta_t) in the direction k_t, and e^{dt_t lambda} in the directions orthogonal to k_t. Each head has one
    lambda = f(w). The published map is f(w) = -e^w; it is used if `reparameterization` is None.

    Parameters: in_qkv ((2 + expand) heads head_width, d_model) and conv on the output of in_qkv, both without bias; in_dt,
    in_beta (heads, d_model), dt_bias, w (heads,); in_gate (expand heads head_width, d_model); norm (expand head_width,);
    out_proj (d_model, expand heads head_width). Initial values as published: f(w) is uniform in [-16, 0], but at most -0.01.
    The step sizes for a zero input are log-uniform in [0.001, 0.1].

    The recurrence runs in the dtype of w even under autocast. scan_backend: as in `delta_rule`.
    """

    probe_scale = 0.0  # a zero input has a zero key, so a head's whole state decays at one rate

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
        super().__init__(reparameterization or get_reparameterization("exp", time="continuous"), scan_backend)
        keys, values = n_heads * head_width, n_heads * head_width * expand
        self.largest_beta = 2.0 if allow_neg_eigval else 1.0
        self.widths = [keys, keys, values]
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
        with self.full_precision(x):
            o, S = delta_rule(q, k, v, beta, dt * self.reparameterization(self.w), backend=self.scan_backend)
        self.watch(S.detach().abs().amax((2, 3)), dt=dt)
        out: Tensor = self.out_proj(self.norm(o.flatten(2), self.in_gate(x)))
        return out

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x_t (batch, d_model) -> (out_t, next state)."""
        before, S = state
        qkv, before = self.conv.step(self.in_qkv(x_t), before)
        q, k, v = self._heads(functional.silu(qkv))
        dt, beta = self._dt_and_beta(x_t)
        with self.full_precision(x_t):
            o, S = delta_step(q, k, v, beta, dt * self.reparameterization(self.w), S)
        return self.out_proj(self.norm(o.flatten(1), self.in_gate(x_t))), (before, S)

    def initial_state(self, batch: int) -> State:
        heads = len(self.w)
        return self.conv.initial_state(batch), self.w.new_zeros(batch, heads, self.widths[1] // heads, self.widths[2] // heads)

    def records(self) -> list[Record]:
        watched = Form("none", "discrete", "none")
        # gradient=True because the published map gives the eigenvalue -1 the weight 0, where |gradient / weight| is infinite
        form = replace(self.reparameterization.form, dt=None, gate=True)
        return [
            Record(form, self.w, gate="dt", gates=len(self.w), gradient=True),
            Record(watched, self.dt_bias, name="dt_bias"),
            Record(watched, rows=tuple(self.in_beta.parameters()), name="beta"),
        ]

    def _dt_and_beta(self, x: Tensor) -> tuple[Tensor, Tensor]:
        dtype = self.w.dtype
        dt = functional.softplus(self.in_dt(x).to(dtype) + self.dt_bias)
        return dt, self.largest_beta * torch.sigmoid(self.in_beta(x).to(dtype))

    def _heads(self, qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (..., heads, keys or values) in the recurrence's dtype."""
        q, k, v = (torch.unflatten(part, -1, (len(self.w), -1)) for part in torch.split(qkv.to(self.w.dtype), self.widths, -1))
        return _unit(q) * q.shape[-1] ** -0.5, _unit(k), v


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)  # 1e-6 makes the function smooth at x = 0, as published


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
