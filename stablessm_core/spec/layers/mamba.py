"""Configuration of `mamba`."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection

TAPS = 4  # length of the short convolution in time steps


class Mamba(LayerSection):
    """Selective state-space layer in Mamba's gated block: one real eigenvalue per state and channel, with a step size computed
    from the input. With transition "s7" the eigenvalue itself is computed from the input, so users cannot choose a map."""

    title: ClassVar[str] = "Mamba (S6)"
    equation: ClassVar[str] = "h_t = exp(Δ_t λ) h_{t-1} + Δ_t B_t x_t,  y_t = C_t · h_t + D x_t,  Δ_t = softplus(W_Δ x_t + b)"
    source: ClassVar[str] = "Mamba, arXiv 2312.00752; transition s7: S7, arXiv 2410.03464"
    family: ClassVar[str] = "varying with the input"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["mamba"] = "mamba"
    d_state: int = Field(16, ge=1, le=1024, description="States per channel.")
    expand: int = Field(2, ge=1, le=8, description="Channels of the recurrence, as a multiple of d_model.")
    transition: Literal["s6", "s7"] = Field(
        "s6",
        description="s6: exp(Δ_t λ), where any map gives λ from its weight. s7: 1 - 1/(A_t² + 0.5) with A_t from the input; all "
        "channels share d_state eigenvalues, and there is no map to choose.",
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
        return self.d_state * self.expand * d_model  # the states of all time steps; a CPU keeps at most every sixteenth state

    def initial_range(self, d_model: int) -> tuple[float, float] | None:  # noqa: ARG002 - the same for every width
        return None if self.transition == "s7" else (-float(self.d_state), -1.0)


def dt_rank(d_model: int) -> int:
    """The rank of the projection that computes the step sizes."""
    return -(-d_model // 16)
