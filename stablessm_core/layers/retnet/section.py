"""Configuration of `retnet`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.layers.section import LayerSection
from stablessm_core.section import not_allowed


class RetNet(LayerSection):
    """Multi-scale retention: a matrix as state of each head, which decays by a number that is never trained."""

    built_by: ClassVar[str] = "stablessm_core.layers.retnet.layer:build"
    title: ClassVar[str] = "RetNet"
    equation: ClassVar[str] = "S_t = γ S_{t-1} + k_t v_tᵀ,  o_t = S_tᵀ q_t,  γ = 1 - 2^(-5-h) in head h"
    source: ClassVar[str] = "RetNet, arXiv 2307.08621"

    name: Literal["retnet"] = "retnet"
    n_heads: int = Field(4, ge=1, le=64, description="Heads, each with its own fixed decay; divides d_model.")
    expand: int = Field(2, ge=1, le=8, description="Width of the values over the model's features.")

    def check(self, d_model: int) -> None:
        if d_model % self.n_heads:
            raise not_allowed("n_heads", self.n_heads, f"a divisor of d_model = {d_model}")

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002 - the same for every width
        return self.n_heads

    def parameters(self, d_model: int) -> int:
        return (2 + 3 * self.expand) * d_model * d_model + self.expand * d_model // self.n_heads

    def activations(self, d_model: int) -> int:
        # the weights between the steps of a chunk of 32, twice; and its last state
        return max(self.expand * d_model, 64 * self.n_heads, self.expand * d_model * d_model // self.n_heads // 32)
