"""Configuration of `listops`. It needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.section import not_allowed
from stablessm_core.tasks.section import TaskSection

LEAST_SHARE = 1e-3  # of the trees drawn must have such a length, or drawing them would take too long


class Listops(TaskSection):
    """Evaluate nested MIN, MAX, MED (median) and SM (sum modulo 10) of digits: ten classes, read token by token.

    Drawn as in Long Range Arena (Tay et al., arXiv 2011.04006), where lengths are 501 to 1,999; after Nangia and Bowman,
    arXiv 1804.06028. Brackets that close are tokens, those that open are not; shorter expressions are padded.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.listops.data:ListopsTask"

    name: Literal["listops"]
    min_length: int = Field(30, ge=4, le=8192, description="Least tokens of an expression (501 in Long Range Arena).")
    max_length: int = Field(100, ge=4, le=8192, description="Most tokens (1,999); the sequence has one more, its end.")
    max_depth: int = Field(10, ge=2, le=10, description="Levels, digits included, that an expression may have.")
    max_args: int = Field(10, ge=2, le=10, description="Arguments that an operator may have; it has at least 2.")

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        from stablessm_core.tasks.listops.trees import Shape, share_accepted

        if self.min_length > self.max_length:
            raise not_allowed("min_length", f"{self.min_length} with max_length {self.max_length}", "min_length <= max_length")
        shape = Shape(self.min_length, self.max_length, self.max_depth, self.max_args)
        if (share := share_accepted(shape)) < LEAST_SHARE:
            given = f"{self.min_length}, max_length {self.max_length}, max_depth {self.max_depth}, max_args {self.max_args}"
            why = f"lengths that at least 1 in {1 / LEAST_SHARE:,.0f} random expressions has (here {share:.1g})"
            raise not_allowed("min_length", given, why)
        return self

    def sequence_length(self) -> int:
        return self.max_length + 1
