"""Configuration of `mamba`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.layers.section import LayerSection

TAPS = 4  # of the short convolution


class Mamba(LayerSection):
    """Selective state-space layer in its gated block: one real eigenvalue per state and channel, whose step size is computed from
    the input. With transition "s7" the eigenvalue itself is, and there is no map to choose."""

    built_by: ClassVar[str] = "stablessm_core.layers.mamba.layer:build"
    title: ClassVar[str] = "Mamba (S6)"
    equation: ClassVar[str] = "h_t = exp(Δ_t λ) h_{t-1} + Δ_t B_t x_t,  y_t = C_t · h_t + D x_t,  Δ_t = softplus(W_Δ x_t + b)"
    source: ClassVar[str] = "Mamba, arXiv 2312.00752; transition s7: S7, arXiv 2410.03464"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["mamba"] = "mamba"
    d_state: int = Field(16, ge=1, le=1024, description="States per channel.")
    expand: int = Field(2, ge=1, le=8, description="Channels of the recurrence over the model's features.")
    transition: Literal["s6", "s7"] = Field(
        "s6",
        description="s6: exp(Δ_t λ), λ by any map of its weight; s7: 1 - 1/(A_t² + 0.5) with A_t from the input, d_state "
        "eigenvalues that all channels share, no map to choose.",
    )

    def eigenvalues(self, d_model: int) -> int:
        return self.d_state if self.transition == "s7" else self.d_state * self.expand * d_model

    def parameters(self, d_model: int) -> int:
        inner, rank = self.expand * d_model, dt_rank(d_model)
        transition = self.d_state * (1 + inner) if self.transition == "s7" else self.d_state * inner
        convolution, selection = (TAPS + 1) * inner, inner * (rank + 2 * self.d_state) + rank * inner + inner
        return 3 * d_model * inner + convolution + selection + transition + inner

    def time_of_map(self) -> Literal["continuous", "discrete"] | None:
        return None if self.transition == "s7" else "continuous"

    def activations(self, d_model: int) -> int:
        return self.d_state * self.expand * d_model  # of all states at once; on a CPU one in sixteen is kept, or fewer

    def initial_range(self, d_model: int) -> tuple[float, float] | None:  # noqa: ARG002 - the same for every width
        return None if self.transition == "s7" else (-float(self.d_state), -1.0)


def dt_rank(d_model: int) -> int:
    """Width through which the step sizes are computed."""
    return -(-d_model // 16)
