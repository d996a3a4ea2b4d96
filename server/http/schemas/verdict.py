"""What the API answers about what became of a run."""

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
        "explosion brought about), or the kind of an alert."
    )
    text: str


class Evidence(Answer):
    """A sentence and, beside it, the numbers that it quotes."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="strings")
    text: str


class Try(Answer):
    change: dict[str, Any] = Field(description="Values at dotted paths, as a clone takes them.")
    because: str


class Confirmation(Answer):
    """What a fork of the run showed."""

    run_id: int
    change: dict[str, Any]
    outcome: Outcome
    text: str


class Culprit(BaseModel):
    layer: int
    eigenvalue: int


class VerdictAnswer(Answer):
    """What became of a run, computed from its recorded numbers, while it trains too."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE]})
    run_id: int
    status: str
    cause: Cause | None = Field(description="null where numbers are finite.")
    thrown_by: ThrownBy | None = Field(description="Of an eigenvalue that overflowed.")
    summary: str
    culprit: Culprit | None
    events: list[Happening] = Field(description="In the order of their steps.")
    evidence: list[Evidence]
    tries: list[Try] = Field(alias="try", description="Changes that follow from the cause, the likeliest first.")
    unstable: dict[str, Any] | None = Field(description="As in the run, of its last recorded step.")
    confirmed: list[Confirmation] = Field(description="What forks of the run showed of this verdict.")
