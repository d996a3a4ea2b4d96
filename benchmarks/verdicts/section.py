"""Configuration of the plug-in task `planted_fault`: an ordinary task with one fault at a known step."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from stablessm_core.spec.task import TaskSection

Place = Literal["none", "input", "target", "loss", "backward", "evaluation", "half_loss", "same_loss", "narrow_loss", "wide_loss"]


class PlantedFault(TaskSection):
    """A fault in the input, the target, the loss, the backward pass or the evaluation of an ordinary task.

    `half_loss` sums the squared errors in float16, and `same_loss` sums them in float32. `narrow_loss` computes
    log(mean(exp(size * error^2))) directly, so that exp overflows float32; `wide_loss` computes the same number safely.
    """

    trained_by: ClassVar[str] = "benchmarks.verdicts.task:planted_fault"

    name: Literal["planted_fault"]
    base: Literal["polynomial_memory", "digits"] = Field("polynomial_memory", description="The ordinary task.")
    length: int = Field(64, ge=1, le=1024, description="Number of steps in a sequence of polynomial_memory.")
    place: Place = Field("none", description="Where the fault is.")
    step: int = Field(1, ge=1, description="The training step of the fault; the first step, if the fault grows.")
    change: Literal["nan", "inf", "-inf", "times", "grows"] = Field(
        "nan", description="nan, inf, -inf: this value. times: multiplied by `size`. grows: by `size` more in every step."
    )
    size: float = Field(1.0, description="The factor, or the size of one changed number.")
    extent: Literal["one", "sequence", "batch"] = Field("one", description="How much of the batch is changed.")

    def sequence_length(self) -> int:
        return 64 if self.base == "digits" else self.length
