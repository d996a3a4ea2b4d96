"""Configuration of `s4d`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LargestStep, SmallestStep, StepSizes


class S4d(StepSizes):
    """Diagonal structured state space as one convolution: every channel has its own complex modes and step size."""

    title: ClassVar[str] = "S4D"
    equation: ClassVar[str] = "λ = f(w) + iω,  h_t = e^{Δλ} h_{t-1} + (e^{Δλ} - 1)/λ x_t,  y_t = 2 Re(C h_t) + D x_t, per channel"
    source: ClassVar[str] = "Diagonal structured state spaces, arXiv 2206.11893"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["s4d"] = "s4d"
    d_state: int = Field(64, ge=2, le=4096, multiple_of=2, description="Modes per channel; one per conjugate pair is stored.")
    init: Literal["lin", "inv"] = Field("lin", description="Initial frequencies. lin: evenly spaced. inv: far apart, as HiPPO.")
    real_start: float = Field(
        -0.5,
        ge=-1000,
        le=10,
        description="Real part of every initial eigenvalue. Positive values are an unstable start, as in the StableSSM authors' "
        "code for the map direct; only direct reaches them.",
    )
    rule: Literal["zoh", "bilinear"] = Field("zoh", description="Discretisation. zoh: zero-order hold. bilinear: bilinear rule.")
    dt_min: SmallestStep = 1e-3
    dt_max: LargestStep = 1e-1

    def eigenvalues(self, d_model: int) -> int:
        return d_model * self.d_state // 2

    def parameters(self, d_model: int) -> int:
        return d_model * (2 * self.d_state + 2) + self.readout(d_model)

    def readout(self, d_model: int) -> int:
        return 2 * d_model * (d_model + 1)

    def activations(self, d_model: int) -> int:
        return 2 * d_model

    def initial_range(self, d_model: int) -> tuple[float, float]:  # noqa: ARG002
        return self.real_start, self.real_start
