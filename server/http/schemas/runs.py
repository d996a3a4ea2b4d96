"""What the API answers and takes, with the examples of the OpenAPI document. Times are UTC epoch seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from server.errors import CODES
from server.http.schemas.queues import Replacement
from stablessm_core.config import Name, RunConfig, Tag
from stablessm_core.forms import Form
from stablessm_core.section import Text
from stablessm_core.telemetry.detectors import KINDS, Severity

MAX_ID = 2**63 - 1
MAX_COMPARED = 100

RunId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the run.", examples=[1])]
Status = Literal["queued", "running", "finished", "failed", "diverged", "cancelled"]

EXAMPLE_CONFIG = RunConfig.model_validate({"task": {"name": "polynomial_memory"}}).model_dump(mode="json")
EXAMPLE_FORM = Form.of_map("best", "discrete").data
EXAMPLE_RUN: dict[str, Any] = {
    "id": 1,
    "url": "/runs/1",
    "name": "best at 0.01",
    "tags": ["demo"],
    "notes": "",
    "status": "running",
    "status_reason": "",
    "config": EXAMPLE_CONFIG,
    "sweep_id": None,
    "sweep_name": None,
    "cloned_from": None,
    "submitted_by": 3,
    "user_id": 2,
    "user": "alice",
    "queue": "default",
    "priority": 0,
    "gpu": "",
    "created_at": 1763712000.0,
    "started_at": 1763712001.2,
    "finished_at": None,
    "attempt": 1,
    "worker": "host:4242:1763711999",
    "host": "host",
    "gpu_name": None,
    "cancel_requested": False,
    "seq": 17,
    "step": 412,
    "steps": 1000,
    "progress": 0.412,
    "steps_per_second": 95.1,
    "eta_seconds": 6.2,
    "environment": {"device": "cpu", "torch": "2.13.0", "scan_backend": "torch"},
    "result": None,
    "divergence": None,
    "forms": [EXAMPLE_FORM],
    "alerts": 0,
    "waits_for": None,
    "bytes_stored": 1_482_240,
    "largest_ratio": 3.7,
    "largest_relative_step": 0.12,
    "nearest_distance": 0.0093,
    "overflow_budget": -0.011,
    "unstable": None,
    "cause": None,
    "forked_from": None,
    "forked_at_step": None,
    "fork_changes": None,
    "hidden": False,
}
EXAMPLE_ALERT: dict[str, Any] = {
    "id": 3,
    "run_id": 2,
    "seq": 9,
    "attempt": 1,
    "kind": "nonfinite_gradient",
    "severity": "critical",
    "step": 58,
    "series": "ssm/0/grad_over_weight",
    "layer": 0,
    "eigenvalue": 31,
    "tensor": "blocks.0.layer.w.grad",
    "value": "NaN",
    "message": "gradient of eigenvalue 31 of layer 0 is NaN",
    "created_at": 1763712003.5,
}


class Answer(BaseModel):
    """Answers keep non-finite numbers as strings."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


class ErrorDetail(Answer):
    code: str = Field(description="One of " + ", ".join(sorted(CODES.values())))
    message: str
    field: str | None = Field(None, description="What is wrong, as a dotted path.")
    allowed: str | None = Field(None, description="What would be right.")


class ErrorAnswer(Answer):
    """The body of every refusal."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"error": {"code": "invalid", "message": "train.steps: ...", "field": "train.steps", "allowed": ">= 1"}}]
        }
    )
    error: ErrorDetail


class RunAnswer(Answer):
    """A run: its complete configuration, its place in the queue, its progress and its result."""

    model_config = ConfigDict(ser_json_inf_nan="strings", json_schema_extra={"examples": [EXAMPLE_RUN]})
    id: int
    url: str = Field(description="The run's page.")
    name: str | None
    tags: list[str]
    notes: str
    status: Status
    status_reason: str
    config: dict[str, Any]
    sweep_id: int | None
    sweep_name: str | None = Field(description="Name of the sweep; null without one.")
    cloned_from: int | None
    submitted_by: int | None = Field(description="Number of the token; null for the token of the settings.")
    user_id: int | None = Field(description="Number of the user; 0 is the owner, null where none was named.")
    user: str = Field(description="Who submitted it, by the name they have now; the token's name where no user was named.")
    queue: str
    priority: int
    gpu: str = Field(description="Part of the name of the GPU it must have; empty for any machine.")
    created_at: float
    started_at: float | None
    finished_at: float | None
    attempt: int = Field(description="Times a worker has taken this run.")
    worker: str | None = Field(description="Who trains it, or trained it last.")
    host: str | None = Field(description="The machine it runs on, or ran on last.")
    gpu_name: str | None = Field(description="The GPU it runs on, or ran on last; null without one.")
    cancel_requested: bool
    seq: int = Field(description="Number of the newest event; the live stream continues after it.")
    step: int = Field(description="Training steps done.")
    steps: int = Field(description="Training steps to do.")
    progress: float = Field(description="step / steps, 0 to 1.")
    steps_per_second: float | None
    eta_seconds: float | None
    environment: dict[str, Any] | None = Field(description="Device, versions, scan backend, parameter groups, data.")
    result: dict[str, Any] | None = Field(description='Final numbers; non-finite ones are "NaN", "Infinity", "-Infinity".')
    divergence: dict[str, Any] | None = Field(description="Step, layer, eigenvalue and tensor that left the finite numbers.")
    forms: list[dict[str, Any]] = Field(
        description="How eigenvalues follow from weights: map, time and constants, each form of its layers once, in their order."
    )
    alerts: int = Field(description="How many alerts it has raised.")
    waits_for: str | None = Field(description="Why a queued run does not start yet.")
    bytes_stored: int = Field(description="What it occupies: recorded numbers in the database, and checkpoint files.")
    largest_ratio: float | None = Field(description="Largest finite |grad|/|w| so far, over all layers and eigenvalues.")
    largest_relative_step: float | None = Field(
        description="Largest finite step of an eigenvalue so far, relative to its distance to the boundary."
    )
    nearest_distance: float | None = Field(description="Smallest 1 - |eigenvalue| so far; negative is outside the boundary.")
    overflow_budget: float | None = Field(
        description="Largest so far: length ln|eigenvalue|max / 88.72; float32 overflows at 1 (at 0.5 behind an activation "
        "without a bound)."
    )
    unstable: dict[str, Any] | None = Field(
        description="Of the last step, where eigenvalues are outside the boundary: how many `eigenvalues` `of` how many, "
        "`worst_distance`, `overflow_budget`, and `overflows_at_length`, the length at which the state would overflow."
    )
    cause: str | None = Field(description="The verdict's cause, once the run has ended; null where nothing went wrong.")
    forked_from: int | None = Field(description="The run whose checkpoint it began from.")
    forked_at_step: int | None = Field(description="The step of that checkpoint.")
    fork_changes: dict[str, Any] | None = Field(description="What the fork changed, by dotted path.")
    hidden: bool = Field(description="Left out of lists that do not ask for hidden runs.")


class RunList(Answer):
    runs: list[RunAnswer]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null on the last one.")


class RunPatch(Replacement):
    """What can be changed later, its place in the queue while it waits; fields left out stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "baseline", "tags": ["paper"], "notes": "seed 3"}]})
    name: Name | None = None
    tags: Annotated[list[Tag], Field(max_length=20)] | None = None
    notes: Annotated[Text, StringConstraints(max_length=20_000)] | None = None
    hidden: bool | None = Field(None, description="Whether lists leave it out; comparisons and sweeps never do.")


class CloneRequest(Replacement):
    """Fields to change in the copy, by dotted path; it waits where the original did unless told otherwise."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"set": {"optimizer.lr": 0.005}}]})
    set: dict[str, Any] = Field(default_factory=dict, max_length=50)


class AlertAnswer(Answer):
    """Something a person should see, where and when it happened."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_ALERT]})
    id: int
    run_id: int
    seq: int
    attempt: int
    kind: str = Field(description=" ".join(f"`{name}`: {kind.meaning}" for name, kind in KINDS.items()))
    severity: Severity
    step: int
    series: str
    layer: int | None
    eigenvalue: int | None
    tensor: str
    value: str
    message: str
    created_at: float


class AlertList(Answer):
    alerts: list[AlertAnswer]
    next_cursor: int | None = Field(description="Of all alerts: give it as `cursor` for the next page; null on the last one.")


class WorkerAnswer(Answer):
    id: str
    host: str
    slots: int
    capabilities: dict[str, Any] = Field(description="Devices, scan backends, data sets, versions.")
    started_at: float
    seen_at: float
    alive: bool = Field(description="Seen within the last 30 s.")
    runs: list[int] = Field(description="Runs it trains now.")


class WorkerList(Answer):
    workers: list[WorkerAnswer]


class Health(Answer):
    status: Literal["ok", "unavailable"]
    version: str
    checks: dict[str, str] = Field(default_factory=dict)
