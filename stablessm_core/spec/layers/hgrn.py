"""Configuration of `hgrn`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection


class Hgrn(LayerSection):
    """Hierarchically gated recurrent network: the forget gate is the eigenvalue. The gate's lower bound is larger in deeper
    layers."""

    title: ClassVar[str] = "HGRN"
    equation: ClassVar[str] = "h_t = f_t h_{t-1} + (1 - f_t) silu(W_i x_t),  f_t = b + (1 - b) σ(W_f x_t)"
    source: ClassVar[str] = "HGRN, arXiv 2311.04823, with real states as in flash-linear-attention"
    family: ClassVar[str] = "varying with the input"

    name: Literal["hgrn"] = "hgrn"
    expand: int = Field(1, ge=1, le=8, description="Number of states, as a multiple of d_model.")

    def eigenvalues(self, d_model: int) -> int:
        return self.expand * d_model

    def parameters(self, d_model: int) -> int:
        return 4 * self.expand * d_model**2 + 2 * self.expand * d_model

    def activations(self, d_model: int) -> int:
        return 8 * self.expand * d_model  # three projections, the input and the gate of the state h, h before and after the norm
