"""Configuration of `dss`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stablessm_core.spec.layer import LargestStep, SmallestStep, StepSizes
from stablessm_core.spec.section import not_allowed


class Dss(StepSizes):
    """Diagonal state spaces as one convolution: all channels share the modes, but have their own step sizes and weights."""

    title: ClassVar[str] = "DSS"
    equation: ClassVar[str] = "λ = f(w) + iω,  h_t = e^{Δλ} h_{t-1} + (e^{Δλ} - 1)/λ x_t,  y_t = Re(W h_t) + D x_t, per channel"
    source: ClassVar[str] = "Diagonal state spaces, arXiv 2203.14343"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"

    name: Literal["dss"] = "dss"
    d_state: int = Field(64, ge=1, le=2048, description="Complex modes, the same in all channels.")
    version: Literal["exp", "softmax"] = Field(
        "exp", description="exp: kernel of decaying modes. softmax: normalised over the length, so modes may also grow."
    )
    length: int | None = Field(
        None,
        ge=1,
        le=2**24,
        description="Number of steps that softmax normalises over. null: each input's length; then single steps cannot run.",
    )
    dt_min: SmallestStep = 1e-3
    dt_max: LargestStep = 1e-1

    @model_validator(mode="after")
    def _fits(self) -> Dss:
        if self.length is not None and self.version == "exp":
            raise not_allowed("length", self.length, "null with version 'exp', which is not normalised")
        return self

    @property
    def native(self) -> str:  # type: ignore[override]
        return "exp" if self.version == "exp" else "direct"

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002
        return self.d_state

    def parameters(self, d_model: int) -> int:
        return 2 * self.d_state + 2 * d_model * self.d_state + 3 * d_model + self.readout(d_model)

    def readout(self, d_model: int) -> int:
        return d_model * (d_model + 1)

    def activations(self, d_model: int) -> int:
        return 2 * d_model

    def initial_range(self, d_model: int) -> tuple[float, float]:  # noqa: ARG002
        return -0.5, -0.5
