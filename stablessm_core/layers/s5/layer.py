"""S5 (arXiv 2208.04933): a diagonal state-space model of all channels together, in its block: scan, then GELU and a gate."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from stablessm_core.differentiation import transformed
from stablessm_core.discretization import Rule, discretized
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.complex_weights import complex_product, real_part_of_product
from stablessm_core.layers.hippo import legs_basis
from stablessm_core.layers.readout import GatedReadout, HalfGatedReadout, lecun_normal_
from stablessm_core.layers.s5.section import S5 as Section
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.telemetry.watch import Record


class S5(nn.Module):
    """z_t = readout(2 Re(C h_t) + D x_t) with h_t = lambda_bar h_{t-1} + B_bar x_t: (batch, length, d_model) to the same.

    lambda = f(w) + i Lambda_imag, d_state/2 modes, of conjugate pairs one, with a step size each; lambda_bar and B_bar by
    zero-order hold or the bilinear rule. Published is f(w) = w, or min(w, -1e-4) with `clip_eigs`: the maps direct and clip.

    Start: the normal part of HiPPO-LegS, Lambda = -1/2 + i omega with eigenvectors V, `blocks` times; B = V* B_0 and C = C_0 V of
    truncated normal B_0 of variance 1/d_state and C_0 of 1/d_state in each part; D normal; steps log-uniform in dt_range.

    Parameters: w, Lambda_imag, log_dt (d_state/2,), B (d_state/2, d_model, 2), C (d_model, d_state/2, 2), D (d_model,), and the
    readout's. B and C hold real and imaginary parts; the recurrence runs in their precision also under autocast.

    reparameterization: a continuous map. activation: the readout's: g = gelu(y), "half_glu1" g sigmoid(W g + b), "half_glu2"
    y sigmoid(W g + b), "full_glu" the gated linear unit of g, "gelu" g alone.
    """

    last_state: Tensor | None  # (batch, d_state/2), |h| after the last step of the last forward

    def __init__(
        self,
        d_model: int,
        d_state: int,
        *,
        reparameterization: Reparameterization,
        blocks: int = 1,
        activation: str = "half_glu1",
        rule: Rule = "zoh",
        dt_range: tuple[float, float] = (1e-3, 1e-1),
        scan_backend: str = "auto",
    ) -> None:
        super().__init__()
        self.reparameterization = reparameterization
        self.rule: Rule = rule
        self.scan_backend = scan_backend
        self.last_state = None
        modes, size = d_state // 2, d_state // blocks
        frequencies, V = legs_basis(size)
        rate = torch.full((modes,), -0.5, dtype=torch.float64)
        start, end = map(math.log, dt_range)
        self.w = nn.Parameter(reparameterization.inverse(rate).float())
        self.Lambda_imag = nn.Parameter(frequencies.repeat(blocks).float())
        self.log_dt = nn.Parameter(start + (end - start) * torch.rand(modes))
        B = lecun_normal_(torch.empty(blocks, size, d_model, dtype=torch.float64), d_state)
        C = lecun_normal_(torch.empty(d_model, blocks, size, 2, dtype=torch.float64), d_state)
        B = (V.mH @ B.to(V.dtype)).flatten(0, 1)
        C = (torch.view_as_complex(C) @ V).flatten(1)
        self.B = nn.Parameter(torch.view_as_real(B).float())
        self.C = nn.Parameter(torch.view_as_real(C).float())
        self.D = nn.Parameter(torch.randn(d_model))
        self.readout = _readout(activation, d_model)

    def forward(self, x: Tensor) -> Tensor:
        lambda_bar, B_bar = self._transition()
        driven = complex_product(x, B_bar)
        with torch.autocast(x.device.type, enabled=False):
            h = linear_scan(lambda_bar, driven, backend=self.scan_backend)
        self.last_state = None if transformed() else h[:, -1].detach().abs()
        return self._read(h, x)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence: x_t (batch, d_model), state complex (batch, d_state/2) -> (z_t, next state)."""
        lambda_bar, B_bar = self._transition()
        h = lambda_bar * state + complex_product(x_t, B_bar)
        return self._read(h, x_t), h

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, complex (batch, d_state/2)."""
        return self.w.new_zeros(batch, self.w.shape[0], dtype=self.w.dtype.to_complex())

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, rule=self.rule, phase="imaginary")
        return [Record(form, self.w, self.log_dt, phase=self.Lambda_imag)]

    def gates(self) -> dict[str, Tensor]:
        return {}

    def extra_repr(self) -> str:
        d_model, modes, _ = self.C.shape
        return f"d_model={d_model}, d_state={2 * modes}, reparameterization={self.reparameterization.name}, rule={self.rule}"

    def _transition(self) -> tuple[Tensor, Tensor]:
        """lambda_bar, complex (d_state/2,), and B_bar as real pairs, (d_state/2, d_model, 2)."""
        lambda_ = torch.complex(self.reparameterization(self.w), self.Lambda_imag)
        lambda_bar, gain = discretized(lambda_, self.log_dt.exp(), self.rule)
        return lambda_bar, torch.view_as_real(gain[:, None] * torch.view_as_complex(self.B))

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        z: Tensor = self.readout(real_part_of_product(2 * self.C, h) + self.D * x)
        return z


def _readout(activation: str, d_model: int) -> nn.Module:
    match activation:
        case "half_glu1":
            return HalfGatedReadout(d_model, gated="gelu")
        case "half_glu2":
            return HalfGatedReadout(d_model, gated="linear")
        case "full_glu":
            return GatedReadout(d_model, "lecun")
        case "gelu":
            return nn.GELU()
    raise ValueError(f"activation is {activation!r}; allowed are half_glu1, half_glu2, full_glu, gelu")


def build(section: Section, given: Surroundings) -> S5:
    assert given.reparameterization is not None
    return S5(
        given.d_model,
        section.d_state,
        reparameterization=given.reparameterization,
        blocks=section.blocks,
        activation=section.activation,
        rule=section.rule,
        dt_range=(section.dt_min, section.dt_max),
        scan_backend=given.scan_backend,
    )
