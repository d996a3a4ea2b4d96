"""Configuration of `stable_ssm` where a model mixes layers; alone, its options stand in `model` itself."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field

from stablessm_core.layers.section import LayerSection
from stablessm_core.section import as_tuple

ActivationName = Literal["tanh", "gelu", "silu", "relu", "identity"]


class StableSsm(LayerSection):
    """Real diagonal state-space layer, y = C act(h) + D x (StableSSM, arXiv 2311.14495). null: as `model` says."""

    built_by: ClassVar[str] = "stablessm_core.layers.stable_ssm.layer:build"
    title: ClassVar[str] = "StableSSM"
    equation: ClassVar[str] = "h_t = f(w) h_{t-1} + B x_t,  y_t = C act(h_t) + D x_t"
    source: ClassVar[str] = "StableSSM, arXiv 2311.14495"
    native: ClassVar[str] = "best"

    name: Literal["stable_ssm"] = "stable_ssm"
    d_state: int | None = Field(None, ge=1, le=65_536, description="Eigenvalues of this layer.")
    eigenvalue_range: Annotated[tuple[float, float] | None, BeforeValidator(as_tuple)] = Field(
        None, description="Initial eigenvalues run over this interval."
    )
    activation: ActivationName | None = Field(None, description="Applied to the states.")

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002
        return self.d_state or 0

    def parameters(self, d_model: int) -> int:
        n = self.d_state or 0
        return n + 2 * n * d_model + d_model  # and n step sizes in continuous time

    def activations(self, d_model: int) -> int:
        return max(d_model, self.d_state or 0)
