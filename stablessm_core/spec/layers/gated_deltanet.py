"""Configuration of `gated_deltanet`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection

TAPS = 4  # length of the short convolution in time steps
SLOWEST, FASTEST = -1e-2, -16.0  # the initial eigenvalues are uniformly distributed between these two values


class GatedDeltaNet(LayerSection):
    """Delta rule with a gated decay: before a head writes a value under its key, it removes the value that is stored there."""

    title: ClassVar[str] = "Gated DeltaNet"
    equation: ClassVar[str] = "S_t = exp(Δ_t λ) (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ,  o_t = S_tᵀ q_t"
    source: ClassVar[str] = "Gated DeltaNet, arXiv 2412.06464; allow_neg_eigval: arXiv 2411.12537"
    family: ClassVar[str] = "with a matrix state"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["gated_deltanet"] = "gated_deltanet"
    n_heads: int = Field(4, ge=1, le=1024, description="Heads, each with one eigenvalue.")
    head_width: int = Field(16, ge=1, le=1024, description="Width of a head's keys.")
    expand: int = Field(2, ge=1, le=8, description="Width of a head's values, as a multiple of its keys' width.")
    allow_neg_eigval: bool = Field(
        False,
        description="β in (0, 2) instead of (0, 1): the state may change its sign along a key, so it can track parity.",
    )

    def eigenvalues(self, d_model: int) -> int:  # noqa: ARG002 - the same for every width
        return self.n_heads

    def parameters(self, d_model: int) -> int:
        keys = self.n_heads * self.head_width
        convolved = (2 + self.expand) * keys
        projections = d_model * (convolved + 2 * self.n_heads) + 2 * d_model * self.expand * keys
        return projections + TAPS * convolved + 2 * self.n_heads + self.expand * self.head_width

    def activations(self, d_model: int) -> int:
        keys = self.n_heads * self.head_width
        # the last two terms: four weights for each pair of time steps in a chunk of 32 steps, and the state at the chunk's end
        return max(d_model, (2 + self.expand) * keys, 128 * self.n_heads, keys * self.expand * self.head_width // 32)

    def initial_range(self, d_model: int) -> tuple[float, float] | None:  # noqa: ARG002 - the same for every width
        return FASTEST, SLOWEST
