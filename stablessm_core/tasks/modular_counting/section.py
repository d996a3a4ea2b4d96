"""Configuration of `modular_counting`. It needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.tasks.section import TaskSection


class ModularCounting(TaskSection):
    """Count the ones of a random bit string, modulo m; m = 2 is parity. Evaluated on strings of twice the length.

    Positive real eigenvalues do not suffice for it: parity needs one that the input turns to -1; an m that is no power of 2 needs
    products of transitions with complex ones (Grazzi et al., arXiv 2411.12537, theorems 1 and 2).
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.modular_counting.data:ModularCountingTask"

    name: Literal["modular_counting"]
    length: int = Field(40, ge=1, le=65_536, description="Bits of a training sequence; evaluation has twice as many.")
    modulus: int = Field(2, ge=2, le=1000, description="m: the count is taken modulo this; 2 is parity.")

    def sequence_length(self) -> int:
        return self.length
