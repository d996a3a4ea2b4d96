"""Configuration of `modular_counting`, which needs no data."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.task import TaskSection


class ModularCounting(TaskSection):
    """Count the ones of a random bit string modulo m; m = 2 is parity. Evaluation strings are twice as long.

    Positive real eigenvalues are not enough for this task. Parity needs an eigenvalue that is -1 for some inputs. If m is not a
    power of 2, products of transition matrices need complex eigenvalues (Grazzi et al., arXiv 2411.12537, theorems 1 and 2).
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.modular_counting:ModularCountingTask"
    order: ClassVar[float] = 11

    name: Literal["modular_counting"]
    length: int = Field(
        40, ge=1, le=65_536, description="Number of bits of a training sequence. Evaluation sequences have twice as many."
    )
    modulus: int = Field(2, ge=2, le=1000, description="m: the count is taken modulo m. 2 is parity.")

    def sequence_length(self) -> int:
        return self.length

    def chance_loss(self) -> float | None:
        return math.log(2) if self.modulus == 2 else None  # the first counts of other moduli are not equally likely
