"""Configuration of `rg_lru`."""

from __future__ import annotations

from math import log
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.section import not_allowed

TAPS = 4  # length of the short convolution in time steps
SMALLEST_RADIUS, LARGEST_RADIUS = 0.9, 0.999  # range of the initial e^lambda


class RgLru(LayerSection):
    """Real-gated linear recurrent unit in Hawk's recurrent block. Each channel has one real eigenvalue: e^(8 λ) to the power of a
    gate between 0 and 1."""

    title: ClassVar[str] = "RG-LRU (Hawk)"
    equation: ClassVar[str] = "h_t = a_t h_{t-1} + sqrt(1 - a_t²) i_t x_t,  a_t = exp(8 r_t λ),  r_t, i_t = σ(W x_t + b)"
    source: ClassVar[str] = "Griffin, arXiv 2402.19427"
    family: ClassVar[str] = "varying with the input"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "softplus"

    name: Literal["rg_lru"] = "rg_lru"
    width: int | None = Field(
        None, ge=1, le=65_536, description="Channels of the recurrence; null: as many as the model's features."
    )
    heads: int = Field(8, ge=1, le=1024, description="Blocks of the gates' matrices; divides the width.")

    def channels(self, d_model: int) -> int:
        return self.width or d_model

    def check(self, d_model: int) -> None:
        channels = self.channels(d_model)
        if channels % self.heads:
            divisors = ", ".join(str(n) for n in range(1, channels + 1) if channels % n == 0)
            raise not_allowed("heads", self.heads, f"a divisor of the {channels} channels: {divisors}")

    def eigenvalues(self, d_model: int) -> int:
        return self.channels(d_model)

    def parameters(self, d_model: int) -> int:
        c = self.channels(d_model)
        gates = 2 * (c * c // self.heads + c)
        return 3 * d_model * c + 2 * c + d_model + (TAPS + 1) * c + gates + c

    def activations(self, d_model: int) -> int:
        return 10 * self.channels(d_model)  # both branches, the gates, the products with the gates, a_t and h_t

    def initial_range(self, d_model: int) -> tuple[float, float]:  # noqa: ARG002 - the same for every width
        return log(SMALLEST_RADIUS), log(LARGEST_RADIUS)
