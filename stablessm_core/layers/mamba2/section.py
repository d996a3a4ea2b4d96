"""Configuration of `mamba2`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.layers.section import LayerSection
from stablessm_core.section import not_allowed

TAPS = 4  # of the short convolution
SLOWEST, FASTEST = -1.0, -16.0  # initial eigenvalues, uniform between them


class Mamba2(LayerSection):
    """Selective state-space layer with one eigenvalue per head and a matrix as its state, in its gated block."""

    built_by: ClassVar[str] = "stablessm_core.layers.mamba2.layer:build"
    title: ClassVar[str] = "Mamba-2 (SSD)"
    equation: ClassVar[str] = "S_t = exp(Δ_t λ) S_{t-1} + B_t (Δ_t x_t)ᵀ,  y_t = S_tᵀ C_t + D x_t,  Δ_t = softplus(W x_t + b)"
    source: ClassVar[str] = "Mamba-2, arXiv 2405.21060"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["mamba2"] = "mamba2"
    d_state: int = Field(64, ge=1, le=1024, description="Rows of a head's state; published models have 128.")
    head_width: int = Field(
        16, ge=1, le=1024, description="Columns of a head's state; divides expand * d_model. Published models have 64."
    )
    expand: int = Field(2, ge=1, le=8, description="Channels of the recurrence over the model's features.")
    n_groups: int = Field(
        1, ge=1, le=1024, description="Groups of heads, each with its own B and C; divides the number of heads."
    )

    def heads(self, d_model: int) -> int:
        return self.expand * d_model // self.head_width

    def check(self, d_model: int) -> None:
        inner = self.expand * d_model
        if inner % self.head_width:
            raise not_allowed("head_width", self.head_width, f"a divisor of expand * d_model = {inner}")
        if self.heads(d_model) % self.n_groups:
            raise not_allowed("n_groups", self.n_groups, f"a divisor of the {self.heads(d_model)} heads")

    def eigenvalues(self, d_model: int) -> int:
        return self.heads(d_model)

    def parameters(self, d_model: int) -> int:
        inner, heads, selected = self.expand * d_model, self.heads(d_model), 2 * self.n_groups * self.d_state
        projections = d_model * (2 * inner + selected + heads) + inner * d_model
        return projections + (TAPS + 1) * (inner + selected) + 3 * heads + inner

    def activations(self, d_model: int) -> int:
        inner, heads = self.expand * d_model, self.heads(d_model)
        # the weights between the steps of a chunk of 32, twice; and its last state
        return max(2 * inner + 2 * self.n_groups * self.d_state, 64 * heads, self.d_state * inner // 32)

    def initial_range(self, d_model: int) -> tuple[float, float] | None:  # noqa: ARG002 - the same for every width
        return FASTEST, SLOWEST
