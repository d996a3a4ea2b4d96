"""Configuration of `s4d`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stablessm_core.layers.section import LayerSection
from stablessm_core.section import not_allowed


class S4d(LayerSection):
    """Diagonal structured state space: every channel has complex modes and a step size of its own; run as one convolution."""

    built_by: ClassVar[str] = "stablessm_core.layers.s4d.layer:build"
    title: ClassVar[str] = "S4D"
    equation: ClassVar[str] = "λ = f(w) + iω,  h_t = e^{Δλ} h_{t-1} + (e^{Δλ} - 1)/λ x_t,  y_t = 2 Re(C h_t) + D x_t, per channel"
    source: ClassVar[str] = "Diagonal structured state spaces, arXiv 2206.11893"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["s4d"] = "s4d"
    d_state: int = Field(64, ge=2, le=4096, multiple_of=2, description="Modes per channel; of conjugate pairs one is kept.")
    init: Literal["lin", "inv"] = Field("lin", description="Initial frequencies: evenly spaced, or as HiPPO's, far apart.")
    rule: Literal["zoh", "bilinear"] = Field("zoh", description="From continuous time to steps: zero-order hold, or bilinear.")
    dt_min: float = Field(1e-3, gt=0, le=100, description="Smallest initial step size.")
    dt_max: float = Field(1e-1, gt=0, le=100, description="Largest initial step size.")

    @model_validator(mode="after")
    def _steps(self) -> S4d:
        if self.dt_min > self.dt_max:
            raise not_allowed("dt_max", self.dt_max, f"at least dt_min = {self.dt_min}")
        return self

    def eigenvalues(self, d_model: int) -> int:
        return d_model * self.d_state // 2

    def parameters(self, d_model: int) -> int:
        return d_model * (2 * self.d_state + 2) + self.readout(d_model)

    def readout(self, d_model: int) -> int:
        return 2 * d_model * (d_model + 1)

    def activations(self, d_model: int) -> int:
        return 2 * d_model

    def initial_range(self, d_model: int) -> tuple[float, float]:  # noqa: ARG002
        return -0.5, -0.5
