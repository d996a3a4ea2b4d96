"""Configuration of `s4`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import StepSizes


class S4(StepSizes):
    """One state-space model per channel, with a matrix that is diagonal plus low rank. The matrix starts as HiPPO-LegS.

    The diagonal part Lambda is recorded at every step: negative real parts certify that the recurrence is stable. The recurrence
    has the eigenvalues of Lambda - P P*, which are computed only during evaluations.
    """

    title: ClassVar[str] = "S4"
    equation: ClassVar[str] = "h_t = Ā h_{t-1} + B̄ x_t,  y_t = 2 Re(C h_t) + D x_t,  A = Λ - P P*,  Ā = (I - Δ/2 A)⁻¹ (I + Δ/2 A)"
    source: ClassVar[str] = "S4, arXiv 2111.00396; the form Λ - P P*: arXiv 2202.09729"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["s4"] = "s4"
    d_state: int = Field(
        64, ge=2, le=1024, multiple_of=2, description="States of each channel. Each conjugate pair has one weight."
    )
    dt_min: float = Field(
        0.001, ge=1e-6, le=1, description="Smallest initial step size. The step size of each channel is drawn log-uniformly."
    )
    dt_max: float = Field(0.1, ge=1e-6, le=1, description="Largest initial step size.")
    kernel: Literal["powers", "cauchy"] = Field(
        "powers",
        description="How the convolution kernel is computed. cauchy: as published. powers: by products of dense matrices. This "
        "is faster, gives the same result, and remains correct if modes grow.",
    )

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
