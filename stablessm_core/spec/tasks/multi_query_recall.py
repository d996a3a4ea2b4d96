"""Configuration of `multi_query_recall`, which needs no data."""

from __future__ import annotations

import math
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from stablessm_core.spec.section import not_allowed
from stablessm_core.spec.task import TaskSection


class MultiQueryRecall(TaskSection):
    """Read key-value pairs, then give the value of each key where it appears again (MQAR; only the queries are scored).

    Source: Arora et al., "Zoology", arXiv 2312.04927, with length 64 to 512, 4 to 64 pairs and 8,192 tokens.
    """

    trained_by: ClassVar[str] = "stablessm_core.tasks.multi_query_recall:MultiQueryRecallTask"
    order: ClassVar[float] = 7

    name: Literal["multi_query_recall"]
    length: int = Field(
        64, ge=4, le=131_072, multiple_of=2, description="Number of tokens of a sequence, including pairs and queries."
    )
    pairs: int = Field(
        8, ge=1, le=4096, description="Number of key-value pairs, at most a quarter of the length. Each is queried once."
    )
    vocabulary_size: int = Field(
        256,
        ge=6,
        le=65_536,
        description="Number of tokens, half keys and half values. Must exceed the length (8,192 in the paper, slow on a CPU).",
    )
    power: float = Field(
        0.01,
        ge=0.001,
        le=10.0,
        description="a in p(gap) ~ gap^(a-1), where gap is the distance from pairs to query. 1: uniform; smaller: nearer.",
    )
    random_non_queries: bool = Field(True, description="true: random tokens between the queries. false: blanks (0).")

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if 4 * self.pairs > self.length:
            raise not_allowed("pairs", f"{self.pairs} with length {self.length}", "4 * pairs <= length")
        if self.vocabulary_size <= self.length:
            raise not_allowed("vocabulary_size", f"{self.vocabulary_size} with length {self.length}", "vocabulary_size > length")
        return self

    def sequence_length(self) -> int:
        return self.length

    def chance_loss(self) -> float:
        return math.log(self.vocabulary_size - self.vocabulary_size // 2)  # the upper half of the tokens are values
