"""S4 (arXiv 2111.00396) in its authors' block: convolution, skip, GELU, gated linear unit."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.convolution import fft_convolution
from stablessm_core.layers.hippo import legs
from stablessm_core.layers.modes import FinalState
from stablessm_core.layers.readout import GatedReadout
from stablessm_core.layers.s4 import section as sections
from stablessm_core.layers.s4.kernel import (
    Step,
    System,
    bilinear_step,
    both,
    final_state,
    kernel_by_cauchy,
    kernel_by_powers,
    real_matrix,
)
from stablessm_core.maps.elementary import saturated_exp
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.telemetry.watch import Record

KERNELS = {"powers": kernel_by_powers, "cauchy": kernel_by_cauchy}


class S4(nn.Module):
    """z_t = readout(2 Re(C h_t) + D x_t), per channel h_t = A_bar h_{t-1} + B_bar x_t: (batch, length, d_model) to the same.

    A = Lambda - P P* with Lambda = f(w) + i omega, f the continuous map; published is f(w) = -e^w. A_bar and B_bar are A and B
    after the bilinear rule with step sizes dt = e^log_dt. Starts as HiPPO-LegS of d_state states in every channel, C and D
    normal, dt log-uniform.

    Parameters: w, omega (d_model, d_state/2), log_dt, D (d_model,), P, B, C (d_model, d_state/2, 2), real and imaginary parts of
    one of each two conjugate modes, and the readout's. Stored is C itself, not C (I - A_bar^length): the layer is the same
    function at every length.

    Re Lambda < 0 makes A + A* negative definite, so every |eigenvalue| of A_bar is below 1; Lambda's own distance is that of the
    diagonal part only, though. `measured` gives the eigenvalues of A_bar.

    kernel: "powers" or "cauchy", two ways to the same convolution (`s4.kernel`), of which the published one, Cauchy's, is exact
    inside the boundary only.
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
    ) -> None:
        super().__init__()
        self.reparameterization = reparameterization
        self.kernel = kernel
        self._final = FinalState()
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
        self.readout = GatedReadout(d_model, "uniform")

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(x.device.type, enabled=False):
            system = self._system()
            y = fft_convolution(x, KERNELS[self.kernel](system, x.shape[1]), self.D)
            self._final.follows_from(_final_size, x, *bilinear_step(system))
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

    @property
    def last_state(self) -> Tensor | None:
        """|h| after the last step of the last forward, (batch, d_model * d_state/2); a convolution has no states on its way."""
        return self._final.size

    def records(self) -> list[Record]:
        form = replace(self.reparameterization.form, rule="bilinear", phase="imaginary")
        return [Record(form, self.w, self.log_dt, phase=self.omega)]

    def gates(self) -> dict[str, Tensor]:
        return {}

    @torch.no_grad()
    def measured(self) -> dict[str, Tensor]:
        """|lambda_bar| of the recurrence and its distance from 1, float32 (d_model * d_state,), a channel's closest first.

        They follow from the eigenvalues of Lambda - P P*, computed in float64. Of many states the fast ones are ill-conditioned,
        as HiPPO's are: the rounding of the weights moves them, not the slow ones. NaN where the weights are not finite.
        """
        system = self._system()
        Lambda, P = system.Lambda.to(torch.complex128), system.P.to(torch.complex128)
        A = real_matrix(Lambda, P, P.conj())
        finite = A.isfinite().flatten(1).all(1)[:, None]
        z = system.dt.double()[:, None] * torch.linalg.eigvals(A.where(finite[..., None], 0.0))
        # 1 - |lambda_bar|^2 = -2 Re z / |1 - z/2|^2 of lambda_bar = (1 + z/2) / (1 - z/2), without cancellation
        distance = -2 * z.real / (1 - z / 2).abs().square() / (1 + ((1 + z / 2) / (1 - z / 2)).abs())
        distance = distance.where(finite, torch.nan).sort(dim=1).values.flatten()
        return {"true_eigenvalue": (1 - distance).float(), "true_boundary_distance": distance.float()}

    def extra_repr(self) -> str:
        d_model, modes = self.w.shape
        return f"d_model={d_model}, d_state={2 * modes}, reparameterization={self.reparameterization.name}, kernel={self.kernel}"

    def _system(self) -> System:
        Lambda = torch.complex(self.reparameterization(self.w), self.omega)
        P, B, C = (torch.view_as_complex(parts) for parts in (self.P, self.B, self.C))
        return System(Lambda, P, B, C, saturated_exp(self.log_dt, torch))


def _final_size(x: Tensor, *step: Tensor) -> Tensor:
    with torch.autocast(x.device.type, enabled=False):
        return final_state(Step(*step), x.to(step[0].dtype.to_real())).abs().flatten(1)


def _each(values: Tensor, channels: int) -> Tensor:
    """The same for every channel, float32."""
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
    )
