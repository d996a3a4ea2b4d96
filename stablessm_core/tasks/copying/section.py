"""Configuration of `copying`. It needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.tasks.section import TaskSection


class Copying(TaskSection):
    """Repeat the tokens that were read, in order, after a blank stretch (only the repetition is scored).

    With `variable` the tokens stand at random places among the blanks: selective copying, which needs a gate that depends on
    the input. Sources: Arjovsky et al., arXiv 1511.06464; Gu and Dao, arXiv 2312.00752, section 3.1.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.copying.data:CopyingTask"

    name: Literal["copying"]
    noise_length: int = Field(100, ge=1, le=131_072, description="L: blanks between the tokens and their repetition.")
    memorized: int = Field(10, ge=1, le=4096, description="M: tokens to repeat; the sequence has L + 2 M steps.")
    vocabulary_size: int = Field(10, ge=4, le=10_000, description="A: tokens, the blank and the marker included.")
    variable: bool = Field(False, description="Selective copying: the tokens stand at random places among the blanks.")

    def sequence_length(self) -> int:
        return self.noise_length + 2 * self.memorized
