"""The JSON of a run's memory function."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import ConfigDict, Field

from server.http.schemas.runs import Answer
from server.http.schemas.series import Number

EXAMPLE: dict[str, Any] = {
    "run_id": 7,
    "step": 500,
    "steps": [250, 500],
    "lags": [0, 1, 2],
    "memory": [1.02, 0.46, 0.3],
    "kernel": [1.0, 0.467, 0.299],
    "fit": {
        "decay": "polynomial",
        "words": "The memory of the network decays slowly, like 1 / (t + 1)^1.1.",
        "exponential": {"amplitude": 0.4, "decay": 0.02, "error": 0.6},
        "polynomial": {"amplitude": 1.0, "decay": 1.1, "error": 0.05},
        "lags": [0, 99],
        "reason": "The error of the exponential curve is 0.6, that of the polynomial curve 0.05, in natural logarithms.",
    },
    "skipped": 0,
    "reason": None,
}


class FittedCurve(Answer):
    amplitude: Number = Field(description="The value at lag 0.")
    decay: Number = Field(description="The rate per step, or the power.")
    error: Number = Field(description="Root mean square of the logarithm of memory over curve.")


class MemoryFit(Answer):
    decay: Literal["exponential", "polynomial", "cannot tell"]
    words: str = Field(description="The fitted decay in one sentence.")
    exponential: FittedCurve
    polynomial: FittedCurve
    lags: tuple[int, int] = Field(description="The first and the last fitted lag.")
    reason: str


class MemoryAnswer(Answer):
    """The memory function of the run's network at one evaluation."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    run_id: int
    step: int | None = Field(description="The step of this measurement; null if there is none.")
    steps: list[int] = Field(description="The steps of all measurements.")
    lags: list[int]
    memory: list[Number] = Field(description="M(t) by lag, for an input of norm 1.")
    kernel: list[float] | None = Field(description="|rho(t)| of the task by lag; null if its right answer is no fixed kernel.")
    fit: MemoryFit | None
    skipped: int = Field(description="Evaluations without a measurement.")
    reason: str | None = Field(description="Why there is no measurement, or not one for each evaluation.")
