"""S4 (arXiv 2111.00396) in its authors' block: convolution, skip connection, GELU and gated linear unit."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from stablessm_core.layers.base import ConvolutionLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.hippo import legs
from stablessm_core.layers.parts.long_convolution import long_convolution
from stablessm_core.layers.parts.readout import GatedReadout
from stablessm_core.layers.parts.s4_kernel import (
    Step,
    System,
    bilinear_step,
    both,
    final_state,
    kernel_by_cauchy,
    kernel_by_powers,
    real_matrix,
)
from stablessm_core.map import saturated_exp
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.spec.layers import s4 as sections
from stablessm_core.watch.watchable import Record

KERNELS = {"powers": kernel_by_powers, "cauchy": kernel_by_cauchy}


class S4(ConvolutionLayer):
    """z_t = readout(2 Re(C h_t) + D x_t) with h_t = A_bar h_{t-1} + B_bar x_t in each channel.

    Input and output are (batch, length, d_model). A = Lambda - P P* with Lambda = f(w) + i omega, where f is a continuous
    map; the published map is f(w) = -e^w. A_bar and B_bar follow from A and B by the bilinear rule with step sizes
    dt = e^log_dt. Initially every channel is HiPPO-LegS with d_state states, C and D are normally distributed, and dt is
    log-uniform.

    Parameters: w, omega (d_model, d_state/2), log_dt, D (d_model,), P, B, C (d_model, d_state/2, 2), and the parameters of the
    readout. P, B and C contain the real and imaginary parts for one mode of each conjugate pair. The layer stores C itself, not
    C (I - A_bar^length), so that the layer is the same function at every length.

    If Re Lambda < 0, A + A* is negative definite, so every |eigenvalue| of A_bar is below 1. The boundary distance recorded at
    every step is computed from the diagonal part Lambda. `measured` returns every |eigenvalue| of A_bar.

    kernel: "powers" or "cauchy", two ways to compute the same convolution (`parts.s4_kernel`). The published "cauchy" is
    accurate only if Re Lambda < 0.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        *,
        reparameterization: Reparameterization,
        dt_min: float = 1e-3,
        dt_max: float = 0.1,
        kernel: str = "powers",
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(reparameterization, scan_backend)
        self.kernel = kernel
        frequencies, P, B = legs(d_state)
        start = reparameterization.inverse(torch.full_like(frequencies, -0.5))
        real = torch.zeros_like(P)
        self.w = nn.Parameter(_each(start, d_model))
        self.omega = nn.Parameter(_each(frequencies, d_model))
        self.log_dt = nn.Parameter(torch.empty(d_model).uniform_(math.log(dt_min), math.log(dt_max)))
        self.P = nn.Parameter(_each(torch.stack([P, real], -1), d_model))
        self.B = nn.Parameter(_each(torch.stack([B, real], -1), d_model))
        self.C = nn.Parameter(torch.randn(d_model, d_state // 2, 2) / math.sqrt(2))
        self.D = nn.Parameter(torch.randn(d_model))
        self.readout = GatedReadout(d_model, "uniform", self.scan_backend)

    def forward(self, x: Tensor) -> Tensor:
        with self.full_precision(x):
            system = self._system()
            y = long_convolution(x, KERNELS[self.kernel](system, x.shape[1]), self.D, backend=self.scan_backend)
            self.watch_later(_final_size, x, *bilinear_step(system))
        z: Tensor = self.readout(y)
        return z

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence: x_t (batch, d_model), state complex (batch, d_model, d_state/2) -> (z_t, next state)."""
        system = self._system()
        h = bilinear_step(system)(state, x_t.to(self.w.dtype))
        return self.readout(both(system.C, h) + self.D * x_t), h

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, complex (batch, d_model, d_state/2)."""
        return self.w.new_zeros(batch, *self.w.shape, dtype=self.w.dtype.to_complex())

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, rule="bilinear", phase="imaginary")
        return [Record(form, self.w, self.log_dt, phase=self.omega)]

    def transition(self, x_t: Tensor) -> Tensor:
        """The factors for P = 0, because the form describes only the diagonal part Lambda."""
        system = self._system()
        ones = torch.ones_like(system.P)[None]
        return bilinear_step(system._replace(P=torch.zeros_like(system.P)))(ones, 0 * x_t).view(-1, 1)

    @torch.no_grad()
    def measured(self) -> dict[str, Tensor]:
        """|lambda_bar| of the recurrence and the distance 1 - |lambda_bar|, each float32 (d_model * d_state,).

        Within each channel the largest |lambda_bar| comes first. The values are computed in float64 from the eigenvalues of
        Lambda - P P*. With many states the fast eigenvalues are ill-conditioned, as in HiPPO: rounding the weights changes the
        fast eigenvalues, but not the slow eigenvalues. If a channel's weights are not finite, the channel's values are NaN.
        """
        system = self._system()
        Lambda, P = system.Lambda.to(torch.complex128), system.P.to(torch.complex128)
        A = real_matrix(Lambda, P, P.conj())
        finite = A.isfinite().flatten(1).all(1)[:, None]
        z = system.dt.double()[:, None] * torch.linalg.eigvals(A.where(finite[..., None], 0.0))
        # for lambda_bar = (1 + z/2) / (1 - z/2), 1 - |lambda_bar|^2 = -2 Re z / |1 - z/2|^2, which has no cancellation
        distance = -2 * z.real / (1 - z / 2).abs().square() / (1 + ((1 + z / 2) / (1 - z / 2)).abs())
        distance = distance.where(finite, torch.nan).sort(dim=1).values.flatten()
        return {"true_eigenvalue": (1 - distance).float(), "true_boundary_distance": distance.float()}

    def _system(self) -> System:
        Lambda = torch.complex(self.reparameterization(self.w), self.omega)
        P, B, C = (torch.view_as_complex(parts) for parts in (self.P, self.B, self.C))
        return System(Lambda, P, B, C, saturated_exp(self.log_dt, torch))


def _final_size(x: Tensor, *step: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return final_state(Step(*step), x.to(step[0].dtype.to_real())).abs().flatten(1)


def _each(values: Tensor, channels: int) -> Tensor:
    """The values repeated for each channel, float32: (channels, ...)."""
    return values.float().expand(channels, *values.shape).clone()


def build(section: sections.S4, given: Surroundings) -> S4:
    assert given.reparameterization is not None
    return S4(
        given.d_model,
        section.d_state,
        reparameterization=given.reparameterization,
        dt_min=section.dt_min,
        dt_max=section.dt_max,
        kernel=section.kernel,
        scan_backend=given.scan_backend,
    )
