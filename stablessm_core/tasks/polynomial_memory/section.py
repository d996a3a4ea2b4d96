"""Configuration of `polynomial_memory`. It needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.tasks.section import TaskSection


class PolynomialMemory(TaskSection):
    """Learn y_t = sum_s rho(s) x_{t-s} with rho decaying polynomially (paper, section 4.1 and appendix F.1)."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.polynomial_memory.data:PolynomialMemoryTask"

    name: Literal["polynomial_memory"]
    kernel: Literal["paper", "authors"] = Field("paper", description="rho(t): paper 1/(t+1)^1.1, authors' code 1/(1+0.1 t)^1.1")
    length: int = Field(100, ge=1, le=131_072, description="Sequence length in steps.")

    def sequence_length(self) -> int:
        return self.length
