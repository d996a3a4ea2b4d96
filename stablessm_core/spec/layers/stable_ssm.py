"""Configuration of `stable_ssm` in a model that mixes layers. In a model with only this layer, the options are fields of the
section `model`."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.section import as_tuple

ActivationName = Literal["tanh", "gelu", "silu", "relu", "identity"]


class StableSsm(LayerSection):
    """Real diagonal state-space layer, y = C act(h) + D x (StableSSM, arXiv 2311.14495). Options that are null take the values
    in `model`."""

    title: ClassVar[str] = "StableSSM"
    equation: ClassVar[str] = "h_t = f(w) h_{t-1} + B x_t,  y_t = C act(h_t) + D x_t"
    source: ClassVar[str] = "StableSSM, arXiv 2311.14495"
    native: ClassVar[str] = "best"

    name: Literal["stable_ssm"] = "stable_ssm"
    d_state: int | None = Field(None, ge=1, le=65_536, description="Eigenvalues of this layer.")
    eigenvalue_range: Annotated[tuple[float, float] | None, BeforeValidator(as_tuple)] = Field(
        None, description="Interval of the initial eigenvalues."
    )
    activation: ActivationName | None = Field(None, description="Applied to the states.")

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002
        return self.d_state or 0

    def parameters(self, d_model: int) -> int:
        n = self.d_state or 0
        return n + 2 * n * d_model + d_model  # in continuous time the layer also has n step sizes

    def activations(self, d_model: int) -> int:
        return max(d_model, self.d_state or 0)
