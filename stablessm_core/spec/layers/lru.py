"""Configuration of `lru`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.section import not_allowed


class Lru(LayerSection):
    """Linear recurrent unit: complex eigenvalues of any modulus and angle. Inputs are scaled so that the states initially have
    the same scale as the inputs."""

    title: ClassVar[str] = "LRU"
    equation: ClassVar[str] = "h_t = f(w) e^{i e^θ} h_{t-1} + γ B x_t,  y_t = Re(C h_t) + D x_t"
    source: ClassVar[str] = "Linear recurrent unit, arXiv 2303.06349"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "discrete"
    native: ClassVar[str] = "exp"
    smallest: ClassVar[float] = 1e-3  # minimum and maximum of the initial |lambda|, because most maps do not reach 0 or 1
    largest: ClassVar[float] = 1 - 1e-4

    name: Literal["lru"] = "lru"
    d_state: int = Field(64, ge=1, le=65_536, description="Complex eigenvalues of this layer.")
    r_min: float = Field(0.0, ge=0, le=0.999, description="Inner radius of the ring in which eigenvalues start.")
    r_max: float = Field(1.0, ge=0.01, le=1, description="Outer radius of the ring in which eigenvalues start.")
    max_phase: float = Field(6.28, gt=0, le=6.2832, description="Initial angles are uniform from 0 to this, in radians.")

    @model_validator(mode="after")
    def _ring(self) -> Lru:
        if self.r_min >= self.r_max:
            raise not_allowed("r_max", self.r_max, f"above r_min = {self.r_min}")
        return self

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002
        return self.d_state

    def parameters(self, d_model: int) -> int:
        return 3 * self.d_state + 4 * self.d_state * d_model + d_model + self.readout(d_model)

    def readout(self, d_model: int) -> int:
        return 2 * d_model * (d_model + 1)

    def activations(self, d_model: int) -> int:
        return max(2 * self.d_state, 2 * d_model)

    def initial_range(self, d_model: int) -> tuple[float, float]:  # noqa: ARG002
        return max(self.r_min, self.smallest), min(self.r_max, self.largest)
