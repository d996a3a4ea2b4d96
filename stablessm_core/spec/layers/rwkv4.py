"""Configuration of `rwkv4`."""

from __future__ import annotations

from math import exp
from typing import ClassVar, Literal

from stablessm_core.spec.layer import LayerSection

LOG_RATES = -5.0, 3.0  # ln of the initial decay rates of the first and the last channel of every layer


class Rwkv4(LayerSection):
    """Time mixing of RWKV-4, as wide as the model: one real eigenvalue per channel, exp(-e^w), the same at every step."""

    title: ClassVar[str] = "RWKV-4"
    equation: ClassVar[str] = (
        "y_t = (N_{t-1} + e^{u+k_t} v_t) / (D_{t-1} + e^{u+k_t}),  N_t = λ̄ N_{t-1} + e^{k_t} v_t,  D_t = λ̄ D_{t-1} + e^{k_t}"
    )
    source: ClassVar[str] = "RWKV, arXiv 2305.13048; BlinkDL/RWKV-LM, RWKV-v4"
    map_time: ClassVar[Literal["continuous", "discrete"] | None] = "discrete"
    native: ClassVar[str] = "exp"

    name: Literal["rwkv4"] = "rwkv4"

    def eigenvalues(self, d_model: int) -> int:
        return d_model

    def parameters(self, d_model: int) -> int:
        return 4 * d_model**2 + 5 * d_model

    def activations(self, d_model: int) -> int:
        return d_model

    def initial_range(self, d_model: int) -> tuple[float, float]:
        first, last = LOG_RATES
        return exp(-exp(last if d_model > 1 else first)), exp(-exp(first))
