"""Configuration of `induction_heads`. It needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.section import not_allowed
from stablessm_core.tasks.section import TaskSection


class InductionHeads(TaskSection):
    """Random tokens with a trigger among them and one at the end: give what stood behind the trigger (the end is scored).

    Sources: Olsson et al., arXiv 2209.11895; generator and defaults of Fu et al. (H3), arXiv 2212.14052, section 3.1.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.induction_heads.data:InductionHeadsTask"

    name: Literal["induction_heads"]
    length: int = Field(30, ge=4, le=131_072, description="Random tokens before the last trigger.")
    vocabulary_size: int = Field(20, ge=4, le=10_000, description="Tokens, the two special ones included.")
    induction_length: int = Field(1, ge=1, le=1024, description="Tokens to repeat after the last trigger.")
    triggers: int = Field(1, ge=1, le=64, description="At most so many earlier triggers, all before the same tokens.")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.induction_length + 2 > self.length:
            given = f"{self.induction_length} with length {self.length}"
            raise not_allowed("induction_length", given, "induction_length + 2 <= length")
        return self

    def sequence_length(self) -> int:
        return self.length + self.induction_length
