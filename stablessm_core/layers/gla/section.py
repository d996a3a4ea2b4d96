"""Configuration of `gla`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.layers.section import LayerSection
from stablessm_core.section import not_allowed

RANK = 16  # of the gate's projection


class Gla(LayerSection):
    """Gated linear attention: a matrix as state of each head, each of its rows with a decay that is computed from the input."""

    built_by: ClassVar[str] = "stablessm_core.layers.gla.layer:build"
    title: ClassVar[str] = "GLA"
    equation: ClassVar[str] = "S_t = diag(α_t) S_{t-1} + k_t v_tᵀ,  o_t = S_tᵀ q_t,  α_t = sigmoid(W₂ W₁ x_t + b)^(1/16)"
    source: ClassVar[str] = "GLA, arXiv 2312.06635"

    name: Literal["gla"] = "gla"
    n_heads: int = Field(4, ge=1, le=1024, description="Heads; divides d_model. Keys have half the width of values.")

    def key_width(self, d_model: int) -> int:
        """Of a head: half of what its values have, rounded up."""
        return -(-d_model // (2 * self.n_heads))

    def check(self, d_model: int) -> None:
        if d_model % self.n_heads:
            raise not_allowed("n_heads", self.n_heads, f"a divisor of d_model = {d_model}")

    def eigenvalues(self, d_model: int) -> int:
        return self.n_heads * self.key_width(d_model)

    def parameters(self, d_model: int) -> int:
        keys = self.eigenvalues(d_model)
        return 2 * d_model * keys + 3 * d_model * d_model + RANK * d_model + (RANK + 1) * keys + d_model // self.n_heads

    def activations(self, d_model: int) -> int:
        keys = self.eigenvalues(d_model)
        # what two halves of blocks of 2 to 32 steps exchange; the weights between the steps of a chunk of 32; its last state
        return max(d_model, 10 * keys, 32 * self.n_heads, keys * d_model // self.n_heads // 32)
