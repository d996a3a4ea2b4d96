"""The JSON of the verdict on a run."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.http.schemas.runs import Answer
from stablessm_core.verdict import CAUSES, THROWN_BY
from stablessm_core.verdict.trouble import KINDS

Cause = Annotated[str, Field(json_schema_extra={"enum": list(CAUSES)})]
Basis = Literal["measured", "inferred"]
Confidence = Literal["measured", "inferred", "cannot_tell"]
ThrownBy = Annotated[str, Field(json_schema_extra={"enum": list(THROWN_BY)})]
Outcome = Literal["lives", "dies", "open"]
EXAMPLE: dict[str, Any] = {
    "run_id": 2,
    "status": "diverged",
    "cause": "eigenvalue_overflow",
    "thrown_by": "optimizer_step",
    "confidence": "inferred",
    "runner_up": None,
    "summary": "Eigenvalue 9 first left the stability boundary at step 2, and at step 105 its state overflowed: |2.4301|^100 = "
    "3.7e38, and float32 ends at 3.4e38. One AdamW step pushed it across: the step was 2.72 times as long as the remaining "
    "distance. The loss gave no warning: one step earlier it was its best so far.",
    "sentences": [
        {
            "text": "The loss gave no warning: one step earlier it was its best so far.",
            "basis": "measured",
            "sentence": "no_warning",
        }
    ],
    "trouble": {"step": 1, "kind": "crossing", "shown": 2, "exact": True},
    "culprit": {"layer": 0, "eigenvalue": 9},
    "events": [
        {
            "step": 2,
            "layer": 0,
            "eigenvalue": 9,
            "kind": "crossing",
            "basis": "measured",
            "text": "Eigenvalue 9 left the boundary (now 1.08).",
        }
    ],
    "evidence": [
        {
            "text": "Overflow budget at step 105: 100 x ln 2.43 / 88.72 = 1.",
            "basis": "measured",
            "sentence": "overflow_budget",
            "overflow_budget": 1.0,
            "limit": 1.0,
        }
    ],
    "try": [{"change": {"model.reparameterization.name": "best"}, "because": "this map keeps every eigenvalue inside"}],
    "unstable": {"eigenvalues": 10, "of": 16, "worst_distance": -1.42, "overflow_budget": 0.997, "overflows_at_length": 101},
    "confirmed": [],
}


class Happening(Answer):
    step: int
    layer: int | None
    eigenvalue: int | None
    kind: str = Field(
        description="`crossing`, `loss_rose`, `gradient_spike`, `rate_jumped`, `bad_batch`, `nonfinite`, `nonfinite_evaluation`, "
        "`rolled_back`, `lr_lowered`, `stopped_early`, `consequence` (an alert that an explosion caused) or the kind of an "
        "alert."
    )
    text: str
    basis: Basis


class Evidence(Answer):
    """A sentence, and the numbers quoted in it."""

    model_config = ConfigDict(extra="allow", ser_json_inf_nan="strings")
    text: str
    basis: Basis = Field(
        description="measured: the sentence states recorded values or results of the autopsy; inferred: it concludes from them."
    )
    sentence: str = Field(description="The name of the sentence; docs/verdict.md lists what must be true of a run for each.")


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


class Trouble(Answer):
    """Where the trouble of the run began."""

    step: int = Field(description="The state after the steps before this one is free of the trouble: a test starts there.")
    kind: Annotated[str, Field(json_schema_extra={"enum": list(KINDS)})]
    shown: int = Field(description="The first recorded step that shows the trouble.")
    exact: bool = Field(description="False if steps between `step` and `shown` were not recorded.")


class VerdictAnswer(Answer):
    """How a run ended, or how its training is going, computed from its recorded values."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE]})
    run_id: int
    status: str
    cause: Cause | None = Field(description="null if all numbers of the training are finite.")
    thrown_by: ThrownBy | None = Field(description="What made an eigenvalue overflow; null if none did.")
    confidence: Confidence | None = Field(
        description="measured: the cause rests on the autopsy or on a record of the cause itself; inferred: it follows from "
        "recorded numbers; cannot_tell: the cause is unknown; null without a cause."
    )
    runner_up: Cause | None = Field(description="The second cause that the data allow.")
    summary: str = Field(description="The text of `sentences`, with how the run ended before it.")
    sentences: list[Evidence] = Field(description="What happened, one item per sentence.")
    culprit: Culprit | None
    trouble: Trouble | None = Field(description="null if the run shows no trouble.")
    events: list[Happening] = Field(description="Ordered by step.")
    evidence: list[Evidence]
    tries: list[Try] = Field(alias="try", description="Changes that follow from the cause, most promising first.")
    unstable: dict[str, Any] | None = Field(description="As `unstable` of the run, at its last recorded step.")
    confirmed: list[Confirmation] = Field(description="What forks of the run show about this verdict.")
