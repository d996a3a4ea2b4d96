"""Configuration of `s4`."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.layers.section import LayerSection
from stablessm_core.section import not_allowed


class S4(LayerSection):
    """One state-space model per channel whose matrix is diagonal plus low rank; starts as HiPPO-LegS.

    What is watched at every step is the diagonal part Lambda: a negative real part certifies that the recurrence is stable. The
    eigenvalues of the recurrence, those of Lambda - P P*, are measured at evaluations.
    """

    built_by: ClassVar[str] = "stablessm_core.layers.s4.layer:build"
    title: ClassVar[str] = "S4"
    equation: ClassVar[str] = "h_t = Ā h_{t-1} + B̄ x_t,  y_t = 2 Re(C h_t) + D x_t,  A = Λ - P P*,  Ā = (I - Δ/2 A)⁻¹ (I + Δ/2 A)"
    source: ClassVar[str] = "S4, arXiv 2111.00396; the form Λ - P P*: arXiv 2202.09729"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["s4"] = "s4"
    d_state: int = Field(
        64, ge=2, le=1024, multiple_of=2, description="States of each channel; one weight per pair of conjugates."
    )
    dt_min: float = Field(0.001, ge=1e-6, le=1, description="Step sizes start log-uniform from here, one per channel.")
    dt_max: float = Field(0.1, ge=1e-6, le=1, description="Largest initial step size.")
    kernel: Literal["powers", "cauchy"] = Field(
        "powers",
        description="How the convolution kernel is computed: cauchy, as published; powers, by products of dense matrices, which "
        "gives the same numbers sooner, and the right ones also where modes grow.",
    )

    @model_validator(mode="after")
    def _steps(self) -> Self:
        if self.dt_min > self.dt_max:
            raise not_allowed("dt_max", self.dt_max, f"at least dt_min = {self.dt_min}")
        return self

    def eigenvalues(self, d_model: int) -> int:
        return d_model * self.d_state // 2

    def parameters(self, d_model: int) -> int:
        return d_model * (4 * self.d_state + 2) + self.readout(d_model)

    def readout(self, d_model: int) -> int:
        return 2 * d_model * (d_model + 1)

    def activations(self, d_model: int) -> int:
        return 2 * d_model

    def initial_range(self, d_model: int) -> tuple[float, float]:  # noqa: ARG002
        return -0.5, -0.5
