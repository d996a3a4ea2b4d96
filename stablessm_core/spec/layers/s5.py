"""Configuration of `s5`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stablessm_core.spec.layer import LargestStep, SmallestStep, StepSizes
from stablessm_core.spec.section import not_allowed


class S5(StepSizes):
    """One state-space model for all channels: complex modes, each with its own step size, initialised from HiPPO. The paper's
    `clip_eigs` is the map `clip`."""

    title: ClassVar[str] = "S5"
    equation: ClassVar[str] = "λ = f(w) + iω,  h_t = e^{Δλ} h_{t-1} + (e^{Δλ} - 1)/λ B x_t,  y_t = 2 Re(C h_t) + D x_t"
    source: ClassVar[str] = "Simplified state space layers, arXiv 2208.04933"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "direct"

    name: Literal["s5"] = "s5"
    d_state: int = Field(64, ge=2, le=65_536, multiple_of=2, description="Modes. One mode of each conjugate pair is stored.")
    blocks: int = Field(2, ge=1, le=32_768, description="HiPPO matrices, as diagonal blocks, that initialise the modes.")
    activation: Literal["half_glu1", "half_glu2", "full_glu", "gelu"] = Field(
        "half_glu1", description="The output after the states: gated GELU, gated output, gated linear unit, or GELU alone."
    )
    rule: Literal["zoh", "bilinear"] = Field("zoh", description="Discretisation. zoh: zero-order hold. bilinear: bilinear rule.")
    dt_min: SmallestStep = 1e-3
    dt_max: LargestStep = 1e-1

    @model_validator(mode="after")
    def _fits(self) -> S5:
        if self.d_state % (2 * self.blocks):
            raise not_allowed("blocks", self.blocks, f"divisors of d_state/2 = {self.d_state // 2}")
        if self.d_state // self.blocks > 1024:
            raise not_allowed("blocks", self.blocks, f"at least d_state/1024 = {self.d_state / 1024:g}")
        return self

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002
        return self.d_state // 2

    def parameters(self, d_model: int) -> int:
        modes = self.d_state // 2
        return 3 * modes + 4 * modes * d_model + d_model + self.readout(d_model)

    def readout(self, d_model: int) -> int:
        outputs = {"gelu": 0, "half_glu1": 1, "half_glu2": 1, "full_glu": 2}[self.activation]
        return outputs * d_model * (d_model + 1)

    def activations(self, d_model: int) -> int:
        return max(self.d_state, 2 * d_model)

    def initial_range(self, d_model: int) -> tuple[float, float]:  # noqa: ARG002
        return -0.5, -0.5
