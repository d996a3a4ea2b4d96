"""Configuration of `rwkv6`."""

from __future__ import annotations

from math import exp
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.layer import LayerSection
from stablessm_core.spec.section import not_allowed

LOG_RATES = -6.0, -1.0  # ln of the initial decay rates of the first and the last channel of every layer
LARGEST_HEAD = 64  # largest width of a head; the published models use this width


class Rwkv6(LayerSection):
    """Time mixing of RWKV-6, as wide as the model: matrix states, with an input-dependent gate on every decay rate."""

    title: ClassVar[str] = "RWKV-6"
    equation: ClassVar[str] = (
        "y_t = r_t (S_{t-1} + diag(u) k_t v_tᵀ),  S_t = diag(e^{-s_t e^w}) S_{t-1} + k_t v_tᵀ,  s_t = e^{LoRA(x)_t}"
    )
    source: ClassVar[str] = "Eagle and Finch, arXiv 2404.05892; BlinkDL/RWKV-LM, RWKV-v5 (x060)"
    family: ClassVar[str] = "with a matrix state"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "continuous"
    native: ClassVar[str] = "exp"

    name: Literal["rwkv6"] = "rwkv6"
    head_size: int | None = Field(
        None, ge=2, le=1024, description="Rows and columns of a state; null: the largest divisor of d_model up to 64."
    )
    mix_rank: int = Field(32, ge=1, le=1024, description="Rank of the input-dependent part of the token shift.")
    decay_rank: int = Field(64, ge=1, le=1024, description="Rank of the input-dependent part of the log decay rates.")

    def check(self, d_model: int) -> None:
        size = self.size_of_head(d_model)
        if d_model % size or size == 1:  # normalising a head with a single number always gives 0
            raise not_allowed("head_size", self.head_size, f"divisors of d_model = {d_model} from 2")

    def size_of_head(self, d_model: int) -> int:
        if self.head_size is not None:
            return self.head_size
        return next(size for size in range(min(LARGEST_HEAD, d_model), 0, -1) if d_model % size == 0)

    def eigenvalues(self, d_model: int) -> int:
        return d_model

    def parameters(self, d_model: int) -> int:
        return 5 * d_model**2 + (10 + 10 * self.mix_rank + 2 * self.decay_rank) * d_model

    def activations(self, d_model: int) -> int:
        return 5 * max(d_model, self.mix_rank)

    def initial_range(self, d_model: int) -> tuple[float, float]:
        first, last = LOG_RATES
        return -exp(last if d_model > 1 else first), -exp(first)
