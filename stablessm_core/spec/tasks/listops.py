"""Configuration of `listops`, which needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.spec.data.listops_trees import Shape, share_accepted
from stablessm_core.spec.section import not_allowed
from stablessm_core.spec.task import TaskSection

LEAST_SHARE = 1e-3  # minimum share of random trees with an allowed length; with a smaller share, drawing takes too long


class Listops(TaskSection):
    """Evaluate nested MIN, MAX, MED (median) and SM (sum modulo 10) of digits: ten classes, read token by token.

    The expressions are drawn as in Long Range Arena (Tay et al., arXiv 2011.04006, lengths 501 to 1,999), which follows Nangia
    and Bowman, arXiv 1804.06028. A closing bracket is a token; an opening bracket is part of the operator's token. Shorter
    expressions are padded.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.listops:ListopsTask"
    order: ClassVar[float] = 10

    name: Literal["listops"]
    min_length: int = Field(30, ge=4, le=8192, description="Fewest tokens in an expression (501 in Long Range Arena).")
    max_length: int = Field(
        100,
        ge=4,
        le=8192,
        description="Most tokens in an expression (1,999 in Long Range Arena). An end token follows the expression.",
    )
    max_depth: int = Field(10, ge=2, le=10, description="Largest depth of an expression, including the level of the digits.")
    max_args: int = Field(10, ge=2, le=10, description="Largest number of arguments of an operator. The smallest number is 2.")

    @model_validator(mode="after")
    def _can_be_drawn(self) -> Self:
        if self.min_length > self.max_length:
            raise not_allowed("min_length", f"{self.min_length} with max_length {self.max_length}", "min_length <= max_length")
        shape = Shape(self.min_length, self.max_length, self.max_depth, self.max_args)
        if (share := share_accepted(shape)) < LEAST_SHARE:
            given = f"{self.min_length}, max_length {self.max_length}, max_depth {self.max_depth}, max_args {self.max_args}"
            why = f"lengths that at least 1 in {1 / LEAST_SHARE:,.0f} random expressions has (here a share of {share:.1g})"
            raise not_allowed("min_length", given, why)
        return self

    def sequence_length(self) -> int:
        return self.max_length + 1
