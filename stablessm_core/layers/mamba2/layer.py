"""Mamba-2's block (arXiv 2405.21060, section 7.1; state-spaces/mamba, mamba_ssm/modules/mamba2.py)."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.differentiation import transformed
from stablessm_core.forms import Form
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.convolution import ShortConvolution
from stablessm_core.layers.gates import gate_statistics
from stablessm_core.layers.mamba2.section import FASTEST, SLOWEST, TAPS, Mamba2
from stablessm_core.layers.normalisation import GatedRMSNorm
from stablessm_core.layers.step_sizes import softplus_bias
from stablessm_core.matrix_state import scalar_decay, step
from stablessm_core.reparameterization import Reparameterization, get_reparameterization
from stablessm_core.telemetry.watch import Record

State = tuple[Tensor, Tensor]  # the convolution's last inputs (batch, taps - 1, channels), S (batch, heads, d_state, head_width)


class Mamba2Block(nn.Module):
    """W_out norm(y * silu(z)) with y of the recurrence of each head on (x, B, C) = silu(conv(W_xBC of the input)):

        S_t = e^{dt_t lambda} S_{t-1} + B_t (dt_t x_t)^T,  y_t = S_t^T C_t + D x_t,  dt_t = softplus(W_dt of the input + b).

    (batch, length, d_model) to the same. Each head has one eigenvalue lambda = f(w), a step size, a skip D and `head_width` of
    the d_inner = expand * d_model channels; B_t and C_t (d_state) belong to all heads of a group. Published f(w) = -e^w, which
    None is.

    Parameters: in_z (d_inner, d_model); in_xbc (d_inner + 2 n_groups d_state, d_model) and conv over them; in_dt (heads, d_model)
    and dt_bias; w, D (heads,); norm (d_inner,), over the channels of a group; out_proj (d_model, d_inner). As published f(w)
    starts uniform in [-16, -1], and the steps of a silent input log-uniform in [0.001, 0.1].

    The recurrence runs in the dtype of w even under autocast. scan_backend: as in `scalar_decay`.
    """

    last_state: Tensor | None  # (batch, heads), the largest |S| after the last step of the last forward

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
        super().__init__()
        inner, heads = expand * d_model, expand * d_model // head_width
        if heads * head_width != inner or heads % n_groups:
            raise ValueError(f"head_width {head_width} must divide {inner} channels, and n_groups {n_groups} their heads")
        self.reparameterization = reparameterization or get_reparameterization("exp", time="continuous")
        self.scan_backend = scan_backend
        self.d_state, self.n_groups = d_state, n_groups
        self.last_state = None
        self._gates: dict[str, Tensor] = {}
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
        with torch.autocast(u.device.type, enabled=False):
            log_decay = dt * self.reparameterization(self.w)
            y, S = scalar_decay(C, B, dt[..., None] * x, log_decay, backend=self.scan_backend)
            y = torch.addcmul(y, self.D[:, None], x)
        if transformed():
            self.last_state = None
        else:
            self.last_state = S.detach().abs().amax((2, 3))
            self._gates = {"dt": gate_statistics(dt)}
        out: Tensor = self.out_proj(self.norm(y.flatten(2), self.in_z(u)))
        return out

    def step(self, u_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: u_t (batch, d_model) -> (out_t, next state)."""
        before, S = state
        dt = self._dt(u_t)
        xbc, before = self.conv.step(self.in_xbc(u_t), before)
        x, B, C = self._selected(functional.silu(xbc))
        with torch.autocast(u_t.device.type, enabled=False):
            log_decay = dt * self.reparameterization(self.w)
            y, S = step(C, B, dt[..., None] * x, log_decay[..., None], S)
            y = torch.addcmul(y, self.D[:, None], x)
        return self.out_proj(self.norm(y.flatten(1), self.in_z(u_t))), (before, S)

    def initial_state(self, batch: int) -> State:
        heads = len(self.w)
        return self.conv.initial_state(batch), self.w.new_zeros(batch, heads, self.d_state, self.out_proj.in_features // heads)

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, dt=None, gate=True)
        # gradient: under the published map the weight of an eigenvalue -1 is 0
        lambda_ = Record(form, self.w, gate="dt", gates=len(self.w), gradient=True)
        return [lambda_, Record(Form("none", "discrete", "none"), self.dt_bias, name="dt_bias")]

    def gates(self) -> dict[str, Tensor]:
        return self._gates

    def extra_repr(self) -> str:
        return f"heads={len(self.w)}, d_state={self.d_state}, reparameterization={self.reparameterization.name}"

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
