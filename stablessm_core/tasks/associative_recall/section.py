"""Configuration of `associative_recall`. It needs no data."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.tasks.section import TaskSection


class AssociativeRecall(TaskSection):
    """Read key-value pairs, then recall the value of the queried key (the last token is scored)."""

    trained_by: ClassVar[str] = "stablessm_core.tasks.associative_recall.data:AssociativeRecallTask"

    name: Literal["associative_recall"]
    length: int = Field(20, ge=2, le=131_072, multiple_of=2, description="Tokens of key-value pairs before the query.")
    vocabulary_size: int = Field(10, ge=6, le=10_000, description="Tokens, the two special ones included.")

    def sequence_length(self) -> int:
        return self.length + 2  # the prefix and the query
