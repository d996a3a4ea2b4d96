"""The JSON of the autopsy of a run."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from server.http.schemas.runs import MAX_ID
from server.lifecycle.autopsy_findings import Findings

State = Literal["none", "off", "queued", "running", "done", "failed"]
PLACE: dict[str, Any] = {
    "step": 13,
    "pass": "forward", "operation": "native_layer_norm", "module": "blocks.0.mlp.norm", "tensor": "output", "index": [1, 98, 2],
    "count": 19, "value": "NaN", "dtype": "float32", "inputs": ["float32", "float32", "float32"],
    "largest_input": 6.0e19, "largest_before": 6.0e19, "layer": 0, "eigenvalue": None,
}  # fmt: skip
EXAMPLE: dict[str, Any] = {
    "run_id": 2, "state": "done", "reason": None, "asked_step": None, "requested_at": 1763712001.7, "requested_by": None,
    "started_at": 1763712004.2, "ended_at": 1763712006.9, "step": 13, "from_step": 0, "bits_equal": True, "refused": None,
    "seconds": 2.4, "fatal": True, "loss": "NaN",
    "batch": {"largest_input": 3.1, "largest_target": 1.2, "usual_input": 3.0, "usual_target": 1.1, "nonfinite_input": 0,
              "nonfinite_target": 0, "nonfinite": 0, "classes": None},
    "onset": {"step": 10, "loss": 8.1, "loss_before": 1.1, "loss_again": 8.1, "output": 9.7, "output_before": 2.1,
              "yardstick": 8.1, "yardstick_before": 1.1,
              "batch": {"largest_input": 3.0, "largest_target": 1.2, "usual_input": 3.0, "usual_target": 1.1,
                        "nonfinite_input": 0, "nonfinite_target": 0, "nonfinite": 0, "classes": None}},
    "gradient": {"step": 10, "norm": 41.2, "recorded": 41.2, "repeated": 41.2, "slope": 41.2, "converged": True, "agrees": True,
                 "differs": None},
    "form": [{"layer": 0, "agrees": True, "error": 1e-7, "reason": None}], "hidden_state": None,
    "first_nonfinite": PLACE,
    "modules": [{"module": "blocks.0.ssm", "pass": "forward", "largest": 6.0e19, "largest_float64": 6.0e19, "nonfinite": 0}],
    "float64": {"finite": True, "loss": 1.34, "largest": 6.0e19, "narrow": [], "first_nonfinite": None},
    "trouble": {"step": 9, "kind": "crossing", "shown": 10},
    "counterfactuals": [{"change": "tenth_of_rate", "settings": {"optimizer.lr": 0.01}, "from_step": 8, "lives": True, "step": 26,
                         "until": 26, "reason": None, "comparable": True, "steps": [9, 10], "loss": [1.1, 1.0]}],
    "evidence_changed": None, "instruments": {"loss": "NaN", "agrees": True, "finite": False, "operations": 412}, "notes": [],
}  # fmt: skip


class AutopsyRequest(BaseModel):
    """What to repeat."""

    model_config = ConfigDict(extra="forbid", json_schema_extra={"examples": [{}, {"step": 12}]})
    step: int | None = Field(
        None, ge=1, le=MAX_ID, strict=True,
        description="The step to train again with instruments. null: the step at which a number became NaN or infinite.",
    )  # fmt: skip


class AutopsyAnswer(Findings):
    """The state of a run's autopsy, and its findings."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE]})
    run_id: int
    state: State = Field(description="`none`: nobody asked for it. `off`: the server allows none (`STABLESSM_AUTOPSY`).")
    reason: str | None = Field(description="Why it failed, why it waits again, or why autopsies are off.")
    asked_step: int | None = Field(description="The step that was asked for; null: the step at which the run died.")
    requested_at: float | None
    requested_by: str | None = Field(
        description="The user who asked for it, so that it begins at once; null: it was queued when the run diverged."
    )
    started_at: float | None
    ended_at: float | None
