"""The linear recurrent unit (LRU, arXiv 2303.06349, section 3). The block is a recurrence, a GELU and a gated linear unit."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor, nn

from stablessm_core.layers.base import WatchedLayer
from stablessm_core.layers.building import Surroundings
from stablessm_core.layers.parts.complex_weights import complex_product, real_part_of_product
from stablessm_core.layers.parts.readout import GatedReadout
from stablessm_core.reparameterization import Reparameterization
from stablessm_core.scan import linear_scan
from stablessm_core.spec.layers.lru import Lru
from stablessm_core.watch.watchable import Record


class LRU(WatchedLayer):
    """z_t = readout(Re(C h_t) + D x_t) with h_t = lambda h_{t-1} + gamma B x_t. Input and output are (batch, length, d_model).

    lambda = f(w) e^{i e^theta_log}, where f is a discrete map; the published map is f(w) = exp(-e^w). Initial eigenvalues are
    distributed uniformly by area over the ring between the radii r_min and r_max, with angles in (0, max_phase] (lemma 3.2).
    The initial gamma = sqrt(1 - |lambda|^2) gives every state the scale of the input (section 3.4). The trained parameter is ln
    gamma.

    Parameters: w, theta_log, gamma_log (d_state,), B (d_state, d_model, 2), C (d_model, d_state, 2), D (d_model,), and the
    parameters of the readout. B and C contain real and imaginary parts. The recurrence runs in the precision of B and C, even
    under autocast.

    reparameterization: a discrete map. r_min, r_max: the range of the initial |lambda|, inside (0, 1). scan_backend: as in
    `linear_scan`.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        *,
        reparameterization: Reparameterization,
        r_min: float = Lru.smallest,
        r_max: float = Lru.largest,
        max_phase: float = 6.28,
        scan_backend: str = "auto",
    ) -> None:
        super().__init__(reparameterization, scan_backend)
        modulus = torch.rand(d_state, dtype=torch.float64).mul(r_max**2 - r_min**2).add(r_min**2).sqrt().clamp(r_min, r_max)
        angle = max_phase * torch.rand(d_state, dtype=torch.float64).clamp(
            min=1e-6
        )  # above 0, because its logarithm is taken below
        self.w = nn.Parameter(reparameterization.inverse(modulus).float())
        self.theta_log = nn.Parameter(angle.log().float())
        self.gamma_log = nn.Parameter((torch.log1p(-modulus.square()) / 2).float())
        self.B = nn.Parameter(torch.randn(d_state, d_model, 2) / math.sqrt(2 * d_model))
        self.C = nn.Parameter(torch.randn(d_model, d_state, 2) / math.sqrt(d_state))
        self.D = nn.Parameter(torch.randn(d_model))
        self.readout = GatedReadout(d_model, "lecun", self.scan_backend)

    def forward(self, x: Tensor) -> Tensor:
        driven = complex_product(x, self._scaled_input())
        with self.full_precision(x):
            h = linear_scan(self._lambda(), driven, backend=self.scan_backend)
        self.watch(h[:, -1].detach().abs())
        return self._read(h, x)

    def step(self, x_t: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        """One step of the recurrence: x_t (batch, d_model), state complex (batch, d_state) -> (z_t, next state)."""
        h = self._lambda() * state + complex_product(x_t, self._scaled_input())
        return self._read(h, x_t), h

    def initial_state(self, batch: int) -> Tensor:
        """h_0 = 0, complex (batch, d_state)."""
        return self.w.new_zeros(batch, self.w.shape[0], dtype=self.w.dtype.to_complex())

    def records(self) -> list[Record]:
        return [Record(replace(self.reparameterization.form, phase="angle"), self.w, phase=self.theta_log)]

    def _lambda(self) -> Tensor:
        return self.reparameterization(self.w) * torch.polar(torch.ones_like(self.w), self.theta_log.exp())

    def _scaled_input(self) -> Tensor:
        return self.gamma_log.exp()[:, None, None] * self.B  # scale B instead of the activations, because B is smaller

    def _read(self, h: Tensor, x: Tensor) -> Tensor:
        z: Tensor = self.readout(real_part_of_product(self.C, h) + self.D * x)
        return z


def build(section: Lru, given: Surroundings) -> LRU:
    assert given.reparameterization is not None
    low, high = section.initial_range(given.d_model)
    return LRU(
        given.d_model,
        section.d_state,
        reparameterization=given.reparameterization,
        r_min=low,
        r_max=high,
        max_phase=section.max_phase,
        scan_backend=given.scan_backend,
    )
