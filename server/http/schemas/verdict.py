"""The JSON of the verdict on a run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.http.schemas.runs import Answer

Cause = Literal["eigenvalue_overflow", "explosion", "step_size", "bad_input", "precision", "lr_too_large", "unknown"]
ThrownBy = Literal["optimizer_step", "gradient_spike", "explosion", "both"]
Outcome = Literal["lives", "dies", "open"]
EXAMPLE: dict[str, Any] = {
    "run_id": 2,
    "status": "diverged",
    "cause": "eigenvalue_overflow",
    "thrown_by": "optimizer_step",
    "summary": "Eigenvalue 9 had been outside the stability boundary since step 2, and at step 105 its state overflowed: "
    "|2.42|^100 = 10^38 no longer fits into float32. The optimizer's steps threw it, by 2.72 times its distance to the boundary "
    "in the step that crossed. The loss gave no sign.",
    "culprit": {"layer": 0, "eigenvalue": 9},
    "events": [
        {"step": 2, "layer": 0, "eigenvalue": 9, "kind": "crossing", "text": "Eigenvalue 9 first outside the boundary at 1.08."}
    ],
    "evidence": [{"text": "Overflow budget 0.997 at step 105.", "overflow_budget": 0.997, "limit": 1.0}],
    "try": [{"change": {"model.reparameterization.name": "best"}, "because": "this map keeps every eigenvalue inside"}],
    "unstable": {"eigenvalues": 10, "of": 16, "worst_distance": -1.42, "overflow_budget": 0.997, "overflows_at_length": 101},
    "confirmed": [],
}


class Happening(Answer):
    step: int
    layer: int | None
    eigenvalue: int | None
    kind: str = Field(
        description="`crossing`, `loss_rose`, `gradient_spike`, `nonfinite`, `rolled_back`, `consequence` (an alert that an "
        "explosion caused), or the kind of an alert."
    )
    text: str


class Evidence(Answer):
    """A sentence, and the numbers quoted in it."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="strings")
    text: str


class Try(Answer):
    change: dict[str, Any] = Field(description="New values by dotted path, as `POST /api/runs/{id}/clone` accepts them.")
    because: str


class Confirmation(Answer):
    """The result of a fork that tests the verdict on the original run."""

    run_id: int
    change: dict[str, Any]
    outcome: Outcome
    text: str


class Culprit(BaseModel):
    layer: int
    eigenvalue: int


class VerdictAnswer(Answer):
    """How a run ended, or how its training is going, computed from its recorded values."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE]})
    run_id: int
    status: str
    cause: Cause | None = Field(description="null if all numbers are finite.")
    thrown_by: ThrownBy | None = Field(description="What made an eigenvalue overflow; null if none did.")
    summary: str
    culprit: Culprit | None
    events: list[Happening] = Field(description="Ordered by step.")
    evidence: list[Evidence]
    tries: list[Try] = Field(alias="try", description="Changes that follow from the cause, most promising first.")
    unstable: dict[str, Any] | None = Field(description="As `unstable` of the run, at its last recorded step.")
    confirmed: list[Confirmation] = Field(description="What forks of the run show about this verdict.")
