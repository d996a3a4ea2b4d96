"""Mamba's block (arXiv 2312.00752, section 3.4 and algorithm 2; state-spaces/mamba, mamba_ssm/modules/mamba_simple.py)."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.gates import decay_of
from stablessm_core.layers.parts.selective_scan import selective_scan
from stablessm_core.layers.parts.short_convolution import ShortConvolution
from stablessm_core.layers.parts.step_sizes import LARGEST, SMALLEST, softplus_bias
from stablessm_core.reparameterization import Reparameterization, get_reparameterization, initial_eigenvalues
from stablessm_core.spec.layers.mamba import TAPS, Mamba, dt_rank
from stablessm_core.telemetry.forms import Form
from stablessm_core.watch.watchable import Record

State = tuple[Tensor, Tensor]  # the convolution's last inputs (batch, taps - 1, d_inner), h (batch, d_inner, d_state)


class MambaBlock(WatchedLayer):
    """W_out (y * silu(z)), where (x', z) = W_in u for the input u, x = silu(conv(x')), and y is the selective recurrence on x:

        h_t = lambda_bar_t h_{t-1} + dt_t B_t x_t,  y_t = C_t . h_t + D x_t,  dt_t = softplus(W_dt W_rank x_t + b).

    Input and output are (batch, length, d_model). Each of the d_inner channels has d_state states. B_t and C_t are linear in x_t
    and shared by the channels. With transition "s6", every state of every channel has its own lambda_bar_t = exp(dt_t f(w)). The
    published map is f(w) = -e^w; it is used if `reparameterization` is None. With transition "s7" (S7, arXiv 2410.03464),
    lambda_bar_t = 1 - 1/(A_t^2 + 1/2), A_t = w + W_A x_t, has one value per state for all channels, and there is no map to
    choose. Everything else is the same as with "s6", so that a comparison of "s6" and "s7" varies only the transition.

    Parameters: in_x, in_z (d_inner, d_model); conv; x_proj (rank + 2 d_state, d_inner); dt_proj (d_inner, rank) and its bias;
    w (d_inner, d_state), or with "s7" w (d_state,) and a_proj (d_state, d_inner); D (d_inner,); out_proj (d_model, d_inner).
    Initial values as published: f(w) is -1 .. -d_state in every channel. The step sizes for a zero input are log-uniform in
    [0.001, 0.1]. The S7 paper gives no initial values; in this implementation, the initial eigenvalues cover the same range as
    with "s6".

    The recurrence runs in the dtype of w even under autocast. pieces: see `selective_scan`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int = 16,
        expand: int = 2,
        *,
        transition: str = "s6",
        reparameterization: Reparameterization | None = None,
        scan_backend: str = "auto",
        pieces: bool | None = None,
    ) -> None:
        inner, rank = expand * d_model, dt_rank(d_model)
        if transition not in ("s6", "s7") or (transition == "s7" and reparameterization is not None):
            raise ValueError(
                f"transition is {transition!r}; allowed: 's6', and 's7' without a reparameterization: it has its own"
            )
        s7 = transition == "s7"
        native = get_reparameterization("best", a=1.0, b=0.5) if s7 else get_reparameterization("exp", time="continuous")
        super().__init__(reparameterization or native, scan_backend)
        self.pieces = pieces
        self.in_x = nn.Linear(d_model, inner, bias=False)
        self.in_z = nn.Linear(d_model, inner, bias=False)
        self.conv = ShortConvolution(inner, TAPS)
        self.x_proj = nn.Linear(inner, rank + 2 * d_state, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        nn.init.uniform_(self.dt_proj.weight, -(rank**-0.5), rank**-0.5)
        with torch.no_grad():
            self.dt_proj.bias.copy_(softplus_bias(inner))
        if s7:
            lambda_ = initial_eigenvalues(math.exp(-d_state * LARGEST), math.exp(-SMALLEST), d_state, "discrete")
        else:
            lambda_ = -torch.arange(1, d_state + 1, dtype=torch.float64).expand(inner, d_state)
        self.w = nn.Parameter(self.reparameterization.inverse(lambda_).float().contiguous())
        self.a_proj = nn.Linear(inner, d_state, bias=False) if s7 else None
        self.D = nn.Parameter(torch.ones(inner))
        self.out_proj = nn.Linear(inner, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        driving = functional.silu(self.conv(self.in_x(x)))
        dt, B, C, A = self._selected(driving)
        with self.full_precision(x):
            u = driving.to(dt.dtype)
            if A is None:
                y, last = selective_scan(
                    dt * u, B, C, dt=dt, lambda_=self.reparameterization(self.w), backend=self.scan_backend, pieces=self.pieces
                )
            else:
                lambda_bar = self.reparameterization(A)
                y, last = selective_scan(dt * u, B, C, lambda_bar=lambda_bar, backend=self.scan_backend, pieces=self.pieces)
            y = torch.addcmul(y, self.D, u)
        if A is None:
            self.watch(last.flatten(1), dt=dt)
        else:
            self.watch(last.abs().amax(1), decay=decay_of(self.reparameterization.boundary_distance(A.detach())))
        out: Tensor = self.out_proj(y * functional.silu(self.in_z(x)))
        return out

    def step(self, x_t: Tensor, state: State) -> tuple[Tensor, State]:
        """One step: x_t (batch, d_model) -> (y_t, next state)."""
        before, h = state
        driving, before = self.conv.step(self.in_x(x_t), before)
        driving = functional.silu(driving)
        dt, B, C, A = self._selected(driving)
        with self.full_precision(x_t):
            u = driving.to(dt.dtype)
            lambda_bar = (
                (dt[..., None] * self.reparameterization(self.w)).exp() if A is None else self.reparameterization(A)[:, None]
            )
            h = lambda_bar * h + (dt * u)[..., None] * B[:, None]
            y = (h @ C[..., None])[..., 0] + self.D * u
        return self.out_proj(y * functional.silu(self.in_z(x_t))), (before, h)

    def initial_state(self, batch: int) -> State:
        d_state = self.w.shape[-1]
        return self.conv.initial_state(batch), self.w.new_zeros(batch, len(self.D), d_state)

    def recurrent(self, state: State) -> Tensor:
        h = state[1]
        return h if self.a_proj is None else h.transpose(1, 2)  # with S7's transition all channels share the eigenvalues

    def records(self) -> list[Record]:
        watched = Form("none", "discrete", "none")
        dt_bias = Record(watched, self.dt_proj.bias, name="dt_bias")
        if self.a_proj is not None:
            form = Form("gate", "discrete", "none", gate=True)
            return [Record(form, rows=(self.w, *self.a_proj.parameters()), gate="decay", gates=len(self.w)), dt_bias]
        form = replace(self.reparameterization.form, dt=None, gate=True)
        # gradient=True because the published map gives the eigenvalue -1 the weight 0, where |gradient / weight| is infinite
        return [Record(form, self.w, gate="dt", gates=len(self.D), gradient=True), dt_bias]

    def _selected(self, driving: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """dt (..., d_inner), B and C (..., d_state), and S7's A (..., d_state), in the recurrence's dtype."""
        dtype, d_state = self.w.dtype, self.w.shape[-1]
        low_rank, B, C = self.x_proj(driving).split([self.dt_proj.in_features, d_state, d_state], dim=-1)
        steps = functional.linear(low_rank, self.dt_proj.weight).to(dtype)  # the bias is added later, in full precision
        dt = functional.softplus(steps + self.dt_proj.bias)
        A = None if self.a_proj is None else self.a_proj(driving).to(dtype) + self.w
        return dt, B.to(dtype), C.to(dtype), A


def build(section: Mamba, given: Surroundings) -> MambaBlock:
    return MambaBlock(
        given.d_model,
        section.d_state,
        section.expand,
        transition=section.transition,
        reparameterization=given.reparameterization if section.transition == "s6" else None,
        scan_backend=given.scan_backend,
    )
