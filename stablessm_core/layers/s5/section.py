"""Configuration of `s5`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stablessm_core.layers.section import LayerSection
from stablessm_core.section import not_allowed


class S5(LayerSection):
    """One state-space model of all channels: complex modes with a step size each, started from HiPPO. Its `clip_eigs` is the map
    `clip`."""

    built_by: ClassVar[str] = "stablessm_core.layers.s5.layer:build"
    title: ClassVar[str] = "S5"
    equation: ClassVar[str] = "λ = f(w) + iω,  h_t = e^{Δλ} h_{t-1} + (e^{Δλ} - 1)/λ B x_t,  y_t = 2 Re(C h_t) + D x_t"
    source: ClassVar[str] = "Simplified state space layers, arXiv 2208.04933"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "direct"

    name: Literal["s5"] = "s5"
    d_state: int = Field(64, ge=2, le=65_536, multiple_of=2, description="Modes; of conjugate pairs one is kept.")
    blocks: int = Field(2, ge=1, le=32_768, description="HiPPO matrices side by side that the modes start from.")
    activation: Literal["half_glu1", "half_glu2", "full_glu", "gelu"] = Field(
        "half_glu1", description="What follows the states: gated GELU, gated output, gated linear unit, or GELU alone."
    )
    rule: Literal["zoh", "bilinear"] = Field("zoh", description="From continuous time to steps: zero-order hold, or bilinear.")
    dt_min: float = Field(1e-3, gt=0, le=100, description="Smallest initial step size.")
    dt_max: float = Field(1e-1, gt=0, le=100, description="Largest initial step size.")

    @model_validator(mode="after")
    def _fits(self) -> S5:
        if self.d_state % (2 * self.blocks):
            raise not_allowed("blocks", self.blocks, f"divisors of d_state/2 = {self.d_state // 2}")
        if self.d_state // self.blocks > 1024:
            raise not_allowed("blocks", self.blocks, f"at least d_state/1024 = {self.d_state / 1024:g}")
        if self.dt_min > self.dt_max:
            raise not_allowed("dt_max", self.dt_max, f"at least dt_min = {self.dt_min}")
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
