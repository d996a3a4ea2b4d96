"""Configuration of `associative_recall`, which needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stablessm_core.spec.task import TaskSection

MOST_TOKENS = 1 << 29  # maximum number of tokens in a fixed training set; such a set takes 4 GiB of memory


class AssociativeRecall(TaskSection):
    """Read key-value pairs, then recall the value of the queried key (the last token is scored)."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.associative_recall:AssociativeRecallTask"
    order: ClassVar[float] = 6

    name: Literal["associative_recall"]
    length: int = Field(20, ge=2, le=131_072, multiple_of=2, description="Number of tokens of key-value pairs before the query.")
    vocabulary_size: int = Field(10, ge=6, le=10_000, description="Number of tokens, including the two special ones.")
    train_sequences: int | None = Field(
        None, ge=1, le=1_000_000, description="Size of a fixed training set (4,000 in the paper). null: every batch is new."
    )

    @model_validator(mode="after")
    def _fits(self) -> AssociativeRecall:
        if self.train_sequences is not None and self.train_sequences * self.length > MOST_TOKENS:
            raise ValueError(
                f"train_sequences is {self.train_sequences:,}, length {self.length:,}; allowed: {MOST_TOKENS:,} tokens in total"
            )
        return self

    def sequence_length(self) -> int:
        return self.length + 2  # plus the prefix and the query
