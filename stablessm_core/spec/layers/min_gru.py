"""Configuration of `min_gru`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection


class MinGru(LayerSection):
    """Minimal gated recurrent unit: the gate computes each eigenvalue from the input."""

    title: ClassVar[str] = "minGRU"
    equation: ClassVar[str] = "h_t = (1 - z_t) h_{t-1} + z_t g(V x_t),  z_t = σ(W x_t)"
    source: ClassVar[str] = "Were RNNs all we needed?, arXiv 2410.01201"
    family: ClassVar[str] = "varying with the input"

    name: Literal["min_gru"] = "min_gru"
    expand: int = Field(
        1, ge=1, le=8, description="Number of states, as a multiple of d_model. Above 1, a matrix projects back to d_model."
    )

    def eigenvalues(self, d_model: int) -> int:
        return self.expand * d_model

    def parameters(self, d_model: int) -> int:
        return (2 if self.expand == 1 else 3) * self.expand * d_model**2

    def activations(self, d_model: int) -> int:
        return 5 * self.expand * d_model  # z, 1 - z, the candidate state before and after g, and the state h
