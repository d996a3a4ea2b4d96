"""S5 (arXiv 2208.04933): one diagonal state-space model that all channels share. The block is a scan, a GELU and a gate."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.complex_weights import complex_product, real_part_of_product
from stablessm_core.layers.parts.hippo import legs_basis
from stablessm_core.layers.parts.modes import narrowed, wide, wide_complex
from stablessm_core.layers.parts.readout import GatedReadout, HalfGatedReadout, lecun_normal_
from stablessm_core.layers.parts.step_sizes import log_uniform
from stablessm_core.map import saturated_exp
from stablessm_core.numerics.discretization import Rule, discretized
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.s5 import S5 as Section
from stablessm_core.watch.watchable import Record


class S5(WatchedLayer):
    """z_t = readout(2 Re(C h_t) + D x_t) with h_t = lambda_bar h_{t-1} + B_bar x_t.

    Input and output are (batch, length, d_model). There are d_state/2 modes lambda = f(w) + i Lambda_imag, one of each
    conjugate pair. Each mode has its own step size. lambda_bar and B_bar are computed by zero-order hold or by the bilinear
    rule. The published map is direct, f(w) = w; with the published option `clip_eigs`, the map is clip, f(w) = min(w, -1e-4).

    Initial values: the modes are the normal part of HiPPO-LegS, Lambda = -1/2 + i omega with eigenvectors V, repeated `blocks`
    times. B = V* B_0 with truncated normal B_0 of variance 1/d_state. C = C_0 V with truncated normal C_0, where the real and
    imaginary parts have variance 1/d_state. D is normally distributed. Step sizes are log-uniform in dt_range.

    Parameters: w, Lambda_imag, log_dt (d_state/2,), B (d_state/2, d_model, 2), C (d_model, d_state/2, 2), D (d_model,), and the
    parameters of the readout. B and C contain real and imaginary parts. The recurrence runs in the precision of B and C, even
    under autocast.

    reparameterization: a continuous map. activation: the readout. With g = gelu(y), "half_glu1" is g sigmoid(W g + b),
    "half_glu2" is y sigmoid(W g + b), "full_glu" is the gated linear unit of g, and "gelu" is g alone.
    """

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
        super().__init__(reparameterization, scan_backend)
        self.rule: Rule = rule
        modes, size = d_state // 2, d_state // blocks
        frequencies, V = legs_basis(size)
        rate = torch.full((modes,), -0.5, dtype=torch.float64)
        self.w = nn.Parameter(reparameterization.inverse(rate).float())
        self.Lambda_imag = nn.Parameter(frequencies.repeat(blocks).float())
        self.log_dt = nn.Parameter(log_uniform(*dt_range, modes))
        B = lecun_normal_(torch.empty(blocks, size, d_model, dtype=torch.float64), d_state)
        C = lecun_normal_(torch.empty(d_model, blocks, size, 2, dtype=torch.float64), d_state)
        B = (V.mH @ B.to(V.dtype)).flatten(0, 1)
        C = (torch.view_as_complex(C) @ V).flatten(1)
        self.B = nn.Parameter(torch.view_as_real(B).float())
        self.C = nn.Parameter(torch.view_as_real(C).float())
        self.D = nn.Parameter(torch.randn(d_model))
        self.readout = _readout(activation, d_model, scan_backend)

    def forward(self, x: Tensor) -> Tensor:
        lambda_bar, B_bar = self._transition()
        driven = complex_product(x, B_bar)
        with self.full_precision(x):
            h = linear_scan(lambda_bar, driven, backend=self.scan_backend)
        self.watch(h[:, -1].detach().abs())
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

    def _transition(self) -> tuple[Tensor, Tensor]:
        """lambda_bar, complex (d_state/2,), and B_bar as real pairs, (d_state/2, d_model, 2).

        Both are computed in float64, because dt lambda may overflow float32 although lambda_bar and B_bar do not.
        """
        lambda_ = wide_complex(torch.complex(self.reparameterization(self.w), self.Lambda_imag))
        discrete = discretized(lambda_, wide(saturated_exp(self.log_dt, torch)), self.rule)
        lambda_bar, gain = (narrowed(x, self.w.dtype.to_complex()) for x in discrete)
        return lambda_bar, torch.view_as_real(gain[:, None] * torch.view_as_complex(self.B))

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        z: Tensor = self.readout(real_part_of_product(2 * self.C, h) + self.D * x)
        return z


def _readout(activation: str, d_model: int, backend: str) -> nn.Module:
    match activation:
        case "half_glu1":
            return HalfGatedReadout(d_model, gated="gelu")
        case "half_glu2":
            return HalfGatedReadout(d_model, gated="linear")
        case "full_glu":
            return GatedReadout(d_model, "lecun", backend)
        case "gelu":
            return nn.GELU()
    raise ValueError(f"activation is {activation!r}; allowed: half_glu1, half_glu2, full_glu, gelu")


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
