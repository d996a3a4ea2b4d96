"""Mamba-2's block (arXiv 2405.21060, section 7.1; state-spaces/mamba, mamba_ssm/modules/mamba2.py)."""

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
from stablessm_core.matrix_state import scalar_decay, step
from stablessm_core.reparameterization import Reparameterization, get_reparameterization
from stablessm_core.spec.layers.mamba2 import FASTEST, SLOWEST, TAPS, Mamba2
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record

State = tuple[Tensor, Tensor]  # the convolution's last inputs (batch, taps - 1, channels), S (batch, heads, d_state, head_width)


class Mamba2Block(WatchedLayer):
    """W_out norm(y * silu(W_z u)) for the input u, where (x, B, C) = silu(conv(W_xBC u)) and y is a recurrence in each head:

        S_t = e^{dt_t lambda} S_{t-1} + B_t (dt_t x_t)^T,  y_t = S_t^T C_t + D x_t,  dt_t = softplus(W_dt u_t + b).

    Input and output are (batch, length, d_model). There are d_inner = expand * d_model channels. Each head has `head_width`
    channels, one eigenvalue lambda = f(w), one step size and one skip weight D. All heads of a group share B_t and C_t, each
    (d_state,). The published map is f(w) = -e^w; it is used if `reparameterization` is None.

    Parameters: in_z (d_inner, d_model); in_xbc (d_inner + 2 n_groups d_state, d_model) and conv on the output of in_xbc; in_dt
    (heads, d_model) and dt_bias; w, D (heads,); norm (d_inner,), which normalises over the channels of a group; out_proj
    (d_model, d_inner). Initial values as published: f(w) is uniform in [-16, -1]. The step sizes for a zero input are
    log-uniform in [0.001, 0.1].

    The recurrence runs in the dtype of w even under autocast. scan_backend: as in `scalar_decay`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 64,
        head_width: int = 16,
        expand: int = 2,
        n_groups: int = 1,
        *,
        reparameterization: Reparameterization | None = None,
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(reparameterization or get_reparameterization("exp", time="continuous"), scan_backend)
        inner, heads = expand * d_model, expand * d_model // head_width
        if heads * head_width != inner or heads % n_groups:
            raise ValueError(f"head_width {head_width} must divide {inner} channels, and n_groups {n_groups} their heads")
        self.d_state, self.n_groups = d_state, n_groups
        self.in_z = nn.Linear(d_model, inner, bias=False)
        self.in_xbc = nn.Linear(d_model, inner + 2 * n_groups * d_state, bias=False)
        self.in_dt = nn.Linear(d_model, heads, bias=False)
        self.conv = ShortConvolution(inner + 2 * n_groups * d_state, TAPS)
        self.dt_bias = nn.Parameter(softplus_bias(heads))
        lambda_ = SLOWEST + (FASTEST - SLOWEST) * torch.rand(heads, dtype=torch.float64)
        self.w = nn.Parameter(self.reparameterization.inverse(lambda_).float())
        self.D = nn.Parameter(torch.ones(heads))
        self.norm = GatedRMSNorm(inner, inner // n_groups, gate_first=True)
        self.out_proj = nn.Linear(inner, d_model, bias=False)

    def forward(self, u: Tensor) -> Tensor:
        dt = self._dt(u)
        x, B, C = self._selected(functional.silu(self.conv(self.in_xbc(u))))
        with self.full_precision(u):
            log_decay = dt * self.reparameterization(self.w)
            y, S = scalar_decay(C, B, dt[..., None] * x, log_decay, backend=self.scan_backend)
            y = torch.addcmul(y, self.D[:, None], x)
        self.watch(S.detach().abs().amax((2, 3)), dt=dt)
        out: Tensor = self.out_proj(self.norm(y.flatten(2), self.in_z(u)))
        return out

    def step(self, u_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: u_t (batch, d_model) -> (out_t, next state)."""
        before, S = state
        dt = self._dt(u_t)
        xbc, before = self.conv.step(self.in_xbc(u_t), before)
        x, B, C = self._selected(functional.silu(xbc))
        with self.full_precision(u_t):
            log_decay = dt * self.reparameterization(self.w)
            y, S = step(C, B, dt[..., None] * x, log_decay[..., None], S)
            y = torch.addcmul(y, self.D[:, None], x)
        return self.out_proj(self.norm(y.flatten(1), self.in_z(u_t))), (before, S)

    def initial_state(self, batch: int) -> State:
        heads = len(self.w)
        return self.conv.initial_state(batch), self.w.new_zeros(batch, heads, self.d_state, self.out_proj.in_features // heads)

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, dt=None, gate=True)
        # gradient=True because the published map gives the eigenvalue -1 the weight 0, where |gradient / weight| is infinite
        lambda_ = Record(form, self.w, gate="dt", gates=len(self.w), gradient=True)
        return [lambda_, Record(Form("none", "discrete", "none"), self.dt_bias, name="dt_bias")]

    def _dt(self, u: Tensor) -> Tensor:
        return functional.softplus(self.in_dt(u).to(self.w.dtype) + self.dt_bias)

    def _selected(self, xbc: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """x (..., heads, head_width), B and C (..., groups, d_state), in the recurrence's dtype."""
        of_groups = self.n_groups * self.d_state
        x, B, C = torch.split(xbc.to(self.w.dtype), [self.out_proj.in_features, of_groups, of_groups], dim=-1)
        B, C = (torch.unflatten(part, -1, (self.n_groups, self.d_state)) for part in (B, C))
        return torch.unflatten(x, -1, (len(self.w), -1)), B, C


def build(section: Mamba2, given: Surroundings) -> Mamba2Block:
    return Mamba2Block(
        given.d_model,
        section.d_state,
        section.head_width,
        section.expand,
        section.n_groups,
        reparameterization=given.reparameterization,
        scan_backend=given.scan_backend,
    )
