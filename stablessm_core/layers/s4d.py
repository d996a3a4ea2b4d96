"""S4D (arXiv 2206.11893): a diagonal state-space model per channel.

The block is a convolution, a GELU and a gated linear unit.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor, nn

from stablessm_core.layers.base import ConvolutionLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.long_convolution import long_convolution
from stablessm_core.layers.parts.modes import final_states, mode_kernel, wide
from stablessm_core.layers.parts.readout import GatedReadout
from stablessm_core.layers.parts.step_sizes import log_uniform
from stablessm_core.numerics.discretization import Rule, discretized
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.s4d import S4d
from stablessm_core.watch.watchable import Record

Form = Literal["convolution", "scan"]


class S4D(ConvolutionLayer):
    """z_t = readout(y_t), y_t = 2 Re(C h_t) + D x_t with h_t = lambda_bar h_{t-1} + B_bar x_t in each channel.

    Input and output are (batch, length, d_model). Each channel has d_state/2 modes lambda = f(w) + i A_imag, one of each
    conjugate pair. lambda_bar and B_bar are computed by zero-order hold or by the bilinear rule, with B = 1. The published map
    is f(w) = -e^w. Initially Re lambda = real_start, which is -1/2 in the publication. With N = d_state and n = 0..N/2 - 1, the
    initial frequencies are pi n ("lin", S4D-Lin) or N/pi (N/(2n + 1) - 1) ("inv", S4D-Inv). Step sizes are log-uniform in
    dt_range.

    Parameters: w, A_imag (d_model, d_state/2), log_dt (d_model,), C (d_model, d_state/2, 2), D (d_model,), and the parameters
    of the readout.

    reparameterization: a continuous map. form: "convolution" (with the kernel 2 Re sum_n C_n B_bar_n lambda_bar_n^l) or
    "scan" (over the states). "scan" needs d_state times as much memory as "convolution". The two forms agree up to rounding.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        *,
        reparameterization: Reparameterization,
        init: Literal["lin", "inv"] = "lin",
        real_start: float = -0.5,
        rule: Rule = "zoh",
        dt_range: tuple[float, float] = (1e-3, 1e-1),
        form: Form = "convolution",
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(reparameterization, scan_backend)
        self.rule: Rule = rule
        self.form: Form = form
        modes = d_state // 2
        rate = torch.full((d_model, modes), real_start, dtype=torch.float64)
        n = torch.arange(modes, dtype=torch.float64)
        frequency = math.pi * n if init == "lin" else d_state / math.pi * (d_state / (2 * n + 1) - 1)
        self.w = nn.Parameter(reparameterization.inverse(rate).float())
        self.A_imag = nn.Parameter(frequency.float().repeat(d_model, 1))
        self.log_dt = nn.Parameter(log_uniform(*dt_range, d_model))
        self.C = nn.Parameter(torch.randn(d_model, modes, 2) / math.sqrt(2))
        self.D = nn.Parameter(torch.randn(d_model))
        self.readout = GatedReadout(d_model, "uniform", self.scan_backend)

    def forward(self, x: Tensor) -> Tensor:
        lambda_bar, gain = self._modes()
        if self.form == "scan":
            h = self._states(x, lambda_bar, gain)
            self.watch(h[:, -1].detach().abs().flatten(1))
            y = 2 * self._output(h) + self.D * x
        else:
            kernel = mode_kernel(lambda_bar, 2 * torch.view_as_complex(self.C) * gain, x.shape[1])
            y = long_convolution(x, kernel, self.D, backend=self.scan_backend)
            self.watch_later(_final_sizes, lambda_bar, gain, x)
        z: Tensor = self.readout(y)
        return z

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step: x_t (batch, d_model), state complex (batch, d_model, d_state/2) -> (z_t, next state)."""
        lambda_bar, gain = self._modes()
        h = lambda_bar.to(state.dtype) * state + gain * x_t[..., None]
        return self.readout(2 * self._output(h) + self.D * x_t), h

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, complex (batch, d_model, d_state/2)."""
        return self.w.new_zeros(batch, *self.w.shape, dtype=self.w.dtype.to_complex())

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, rule=self.rule, phase="imaginary")
        return [Record(form, self.w, self.log_dt, phase=self.A_imag)]

    def _modes(self) -> tuple[Tensor, Tensor]:
        """lambda_bar, in float64 because large powers of lambda_bar are needed, and B_bar; complex (d_model, d_state/2)."""
        lambda_ = torch.complex(self.reparameterization(wide(self.w)), wide(self.A_imag))
        lambda_bar, gain = discretized(lambda_, wide(self.log_dt).exp()[:, None], self.rule)
        return lambda_bar, gain.to(self.w.dtype.to_complex())

    def _states(self, x: Tensor, lambda_bar: Tensor, gain: Tensor) -> Tensor:
        with self.full_precision(x):
            driven = (gain * x.to(self.w.dtype)[..., None]).flatten(2)
            h = linear_scan(lambda_bar.flatten().to(driven.dtype), driven, backend=self.scan_backend)
        return h.view(*h.shape[:2], *self.w.shape)

    def _output(self, h: Tensor) -> Tensor:
        """Re(C h), h complex (..., d_model, d_state/2)."""
        return (torch.view_as_complex(self.C) * h).sum(-1).real


def _final_sizes(lambda_bar: Tensor, gain: Tensor, x: Tensor) -> Tensor:
    return (gain * final_states(lambda_bar, x.to(gain.dtype.to_real()))).abs().flatten(1)


def build(section: S4d, given: Surroundings) -> S4D:
    assert given.reparameterization is not None
    return S4D(
        given.d_model,
        section.d_state,
        reparameterization=given.reparameterization,
        init=section.init,
        real_start=section.real_start,
        rule=section.rule,
        dt_range=(section.dt_min, section.dt_max),
        scan_backend=given.scan_backend,
    )
