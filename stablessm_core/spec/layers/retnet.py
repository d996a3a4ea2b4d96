"""Configuration of `retnet`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.section import not_allowed


class RetNet(LayerSection):
    """Multi-scale retention: each head's state is a matrix that decays by a fixed factor, which is not trained."""

    title: ClassVar[str] = "RetNet"
    equation: ClassVar[str] = "S_t = γ S_{t-1} + k_t v_tᵀ,  o_t = S_tᵀ q_t,  γ = 1 - 2^(-5-h) in head h"
    source: ClassVar[str] = "RetNet, arXiv 2307.08621"
    family: ClassVar[str] = "with a matrix state"

    name: Literal["retnet"] = "retnet"
    n_heads: int = Field(4, ge=1, le=64, description="Heads, each with its own fixed decay; divides d_model.")
    expand: int = Field(2, ge=1, le=8, description="Width of the values, as a multiple of d_model.")

    def check(self, d_model: int) -> None:
        if d_model % self.n_heads:
            raise not_allowed("n_heads", self.n_heads, f"a divisor of d_model = {d_model}")

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002 - the same for every width
        return self.n_heads

    def parameters(self, d_model: int) -> int:
        return (2 + 3 * self.expand) * d_model * d_model + self.expand * d_model // self.n_heads

    def activations(self, d_model: int) -> int:
        # the last two terms: two weights for each pair of time steps in a chunk of 32 steps, and the state at the chunk's end
        return max(self.expand * d_model, 64 * self.n_heads, self.expand * d_model * d_model // self.n_heads // 32)
