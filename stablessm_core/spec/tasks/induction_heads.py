"""Configuration of `induction_heads`, which needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.spec.section import not_allowed
from stablessm_core.spec.task import TaskSection


class InductionHeads(TaskSection):
    """Read random tokens with a trigger among them and a trigger at the end, then repeat what followed the first trigger.

    Sources: Olsson et al., arXiv 2209.11895; generator and defaults: Fu et al. (H3), arXiv 2212.14052, section 3.1.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.induction_heads:InductionHeadsTask"
    order: ClassVar[float] = 8

    name: Literal["induction_heads"]
    length: int = Field(30, ge=4, le=131_072, description="Number of random tokens before the last trigger.")
    vocabulary_size: int = Field(20, ge=4, le=10_000, description="Number of tokens, including the two special ones.")
    induction_length: int = Field(
        1, ge=1, le=1024, description="Number of tokens to repeat after the last trigger. Only they are scored."
    )
    triggers: int = Field(1, ge=1, le=64, description="Largest number of earlier triggers. The same tokens follow each of them.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.induction_length + 2 > self.length:
            given = f"{self.induction_length} with length {self.length}"
            raise not_allowed("induction_length", given, "induction_length + 2 <= length")
        return self

    def sequence_length(self) -> int:
        return self.length + self.induction_length
