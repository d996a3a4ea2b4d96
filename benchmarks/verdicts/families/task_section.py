"""Configuration of the plug-in task `planted_family`: an ordinary task with a fault that a table of faults describes."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.task import TaskSection


class PlantedFamily(TaskSection):
    """An ordinary task with a fault in its batches, its loss function or its backward pass."""

    trained_by: ClassVar[str] = "benchmarks.verdicts.families.task:planted_family"

    name: Literal["planted_family"]
    base: Literal["polynomial_memory", "digits", "tokens"] = Field("polynomial_memory", description="The ordinary task.")
    length: int = Field(64, ge=1, le=1024, description="Number of steps in a sequence of polynomial_memory.")
    fault: str = Field("none", description="The fault: a key of the table of task faults.")
    at: int = Field(1, ge=1, description="The training step of the fault, or the first of them.")
    how: Literal["once", "from", "every", "grows", "few"] = Field("once", description="In which steps.")
    period: int = Field(3, ge=1, description="Every how many steps, if `how` is every.")
    size: float = Field(1.0, description="The size of the fault.")

    def sequence_length(self) -> int:
        return {"digits": 64, "tokens": 24}.get(self.base, self.length)
