"""Configuration of `min_gru`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.layers.section import LayerSection


class MinGru(LayerSection):
    """Minimal gated recurrent unit: no weight of its own decides an eigenvalue, only what the gate makes of the input."""

    built_by: ClassVar[str] = "stablessm_core.layers.min_gru.layer:build"
    title: ClassVar[str] = "minGRU"
    equation: ClassVar[str] = "h_t = (1 - z_t) h_{t-1} + z_t g(V x_t),  z_t = σ(W x_t)"
    source: ClassVar[str] = "Were RNNs all we needed?, arXiv 2410.01201"

    name: Literal["min_gru"] = "min_gru"
    expand: int = Field(1, ge=1, le=8, description="States over the model's features; above 1 a matrix leads back.")

    def eigenvalues(self, d_model: int) -> int:
        return self.expand * d_model

    def parameters(self, d_model: int) -> int:
        return (2 if self.expand == 1 else 3) * self.expand * d_model**2

    def activations(self, d_model: int) -> int:
        return 5 * self.expand * d_model  # z and 1 - z, the candidate before and after g, h
