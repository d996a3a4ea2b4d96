"""Configuration of `hgrn`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.layers.section import LayerSection


class Hgrn(LayerSection):
    """Hierarchically gated recurrent network: the forget gate is the eigenvalue, and deeper layers cannot forget as fast."""

    built_by: ClassVar[str] = "stablessm_core.layers.hgrn.layer:build"
    title: ClassVar[str] = "HGRN"
    equation: ClassVar[str] = "h_t = f_t h_{t-1} + (1 - f_t) silu(W_i x_t),  f_t = b + (1 - b) σ(W_f x_t)"
    source: ClassVar[str] = "HGRN, arXiv 2311.04823, with real states as in flash-linear-attention"

    name: Literal["hgrn"] = "hgrn"
    expand: int = Field(1, ge=1, le=8, description="States over the model's features.")

    def eigenvalues(self, d_model: int) -> int:
        return self.expand * d_model

    def parameters(self, d_model: int) -> int:
        return 4 * self.expand * d_model**2 + 2 * self.expand * d_model

    def activations(self, d_model: int) -> int:
        return 8 * self.expand * d_model  # the three projections, what drives h and fades it, h before and after the norm
