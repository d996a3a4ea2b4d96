"""Configuration of `copying`, which needs no data."""

from __future__ import annotations

import math
from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.task import TaskSection


class Copying(TaskSection):
    """Read tokens, then blanks, then repeat the tokens in order (only the repetition is scored).

    With `variable` the tokens are at random positions among the blanks. This is selective copying, which needs a gate that
    depends on the input. Sources: Arjovsky et al., arXiv 1511.06464; Gu and Dao, arXiv 2312.00752, section 3.1.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.copying:CopyingTask"
    order: ClassVar[float] = 9

    name: Literal["copying"]
    noise_length: int = Field(100, ge=1, le=131_072, description="L: number of blanks between the tokens and their repetition.")
    memorized: int = Field(10, ge=1, le=4096, description="M: number of tokens to repeat. A sequence has L + 2 M steps.")
    vocabulary_size: int = Field(10, ge=4, le=10_000, description="A: number of tokens, including the blank and the marker.")
    variable: bool = Field(False, description="Selective copying: the tokens are at random positions among the blanks.")

    def sequence_length(self) -> int:
        return self.noise_length + 2 * self.memorized

    def chance_loss(self) -> float:
        return math.log(self.vocabulary_size - 2)  # neither the blank nor the marker is an answer
