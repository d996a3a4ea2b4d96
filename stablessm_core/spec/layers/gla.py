"""Configuration of `gla`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.section import not_allowed

RANK = 16  # rank of the projection that computes the decay gate


class Gla(LayerSection):
    """Gated linear attention: each head's state is a matrix. The decay of each row of the matrix is computed from the input."""

    title: ClassVar[str] = "GLA"
    equation: ClassVar[str] = "S_t = diag(α_t) S_{t-1} + k_t v_tᵀ,  o_t = S_tᵀ q_t,  α_t = sigmoid(W₂ W₁ x_t + b)^(1/16)"
    source: ClassVar[str] = "GLA, arXiv 2312.06635"
    family: ClassVar[str] = "with a matrix state"

    name: Literal["gla"] = "gla"
    n_heads: int = Field(4, ge=1, le=1024, description="Heads; divides d_model. Keys have half the width of values.")

    def key_width(self, d_model: int) -> int:
        """The width of a head's keys: half the width of its values, rounded up."""
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
        # the last three terms: queries, keys and their decay factors for five block sizes, one weight for each pair of time
        # steps in a chunk of 32 steps, and the state at the chunk's end
        return max(d_model, 10 * keys, 32 * self.n_heads, keys * d_model // self.n_heads // 32)
