"""Configuration of `mamba2`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.section import not_allowed

TAPS = 4  # length of the short convolution in time steps
SLOWEST, FASTEST = -1.0, -16.0  # the initial eigenvalues are uniformly distributed between these two values


class Mamba2(LayerSection):
    """Selective state-space layer in Mamba-2's gated block, with one eigenvalue and one matrix-valued state per head."""

    title: ClassVar[str] = "Mamba-2 (SSD)"
    equation: ClassVar[str] = "S_t = exp(Δ_t λ) S_{t-1} + B_t (Δ_t x_t)ᵀ,  y_t = S_tᵀ C_t + D x_t,  Δ_t = softplus(W x_t + b)"
    source: ClassVar[str] = "Mamba-2, arXiv 2405.21060"
    family: ClassVar[str] = "with a matrix state"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["mamba2"] = "mamba2"
    d_state: int = Field(64, ge=1, le=1024, description="Rows of a head's state; published models have 128.")
    head_width: int = Field(
        16, ge=1, le=1024, description="Columns of a head's state; divides expand * d_model. Published models have 64."
    )
    expand: int = Field(2, ge=1, le=8, description="Channels of the recurrence, as a multiple of d_model.")
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
        # the last two terms: two weights for each pair of time steps in a chunk of 32 steps, and the state at the chunk's end
        return max(2 * inner + 2 * self.n_groups * self.d_state, 64 * heads, self.d_state * inner // 32)

    def initial_range(self, d_model: int) -> tuple[float, float] | None:  # noqa: ARG002 - the same for every width
        return FASTEST, SLOWEST
