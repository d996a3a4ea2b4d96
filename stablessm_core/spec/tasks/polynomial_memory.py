"""Configuration of `polynomial_memory`, which needs no data."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import accumulate
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.task import TaskSection


class PolynomialMemory(TaskSection):
    """Learn y_t = sum_s rho(s) x_{t-s}, where rho decays polynomially (StableSSM, section 4.1 and appendix F.1)."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.polynomial_memory:PolynomialMemoryTask"
    order: ClassVar[float] = 1

    name: Literal["polynomial_memory"]
    kernel: Literal["paper", "authors"] = Field(
        "paper", description="rho(t). paper: 1/(t+1)^1.1. authors: 1/(1+0.1 t)^1.1, as in their code."
    )
    length: int = Field(100, ge=1, le=131_072, description="Number of steps in a sequence.")

    def sequence_length(self) -> int:
        return self.length

    def chance_loss(self) -> float:
        """The mean square of the target, because the inputs are independent with variance 1."""
        return mean_square(self.kernel, self.length)

    def memory_kernel(self, lags: int) -> list[float]:
        return [(1 + (t if self.kernel == "paper" else 0.1 * t)) ** -1.1 for t in range(lags)]


@lru_cache(maxsize=64)
def mean_square(kernel: str, length: int) -> float:
    """The mean over t < length of the sum of rho(s)^2 over s <= t."""
    square = ((1 + (s if kernel == "paper" else 0.1 * s)) ** -2.2 for s in range(length))
    return math.fsum(accumulate(square)) / length
