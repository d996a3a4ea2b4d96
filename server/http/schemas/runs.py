"""The JSON of runs, alerts and workers in requests and responses, with examples. Times are UTC epoch seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, create_model

from server.errors import CODES, EXISTS, FENCED
from server.http.schemas.queues import QueueChange
from server.lifecycle.run_fields import ANSWERED, EXAMPLE_RUN
from stablessm_core.spec.config import Name, RunConfig, Tag
from stablessm_core.spec.section import Text
from stablessm_core.telemetry.detectors import KINDS, Severity
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.limits import MAX_NOTES, MAX_PROJECT, MAX_TAGS

MAX_ID = 2**63 - 1
MAX_COMPARED = 100

Project = Annotated[Text, StringConstraints(strip_whitespace=True, max_length=MAX_PROJECT)]
PROJECT = "The project to which runs belong, for filters, comparisons and exports. Empty for none."
RunId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the run.", examples=[1])]

EXAMPLE_FORM = Form.of_map("best", "discrete").data
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
    """Base class of responses. Non-finite numbers become strings."""

    model_config = ConfigDict(ser_json_inf_nan="strings")


class ErrorDetail(Answer):
    code: str = Field(description="One of " + ", ".join(sorted([*CODES.values(), EXISTS, FENCED])))
    message: str
    field: str | None = Field(None, description="The invalid field, as a dotted path.")
    allowed: str | None = Field(None, description="What is allowed instead.")


class ErrorAnswer(Answer):
    """The body of every error response."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"error": {"code": "invalid", "message": "train.steps: ...", "field": "train.steps", "allowed": ">= 1"}}]
        }
    )
    error: ErrorDetail


if TYPE_CHECKING:

    class RunAnswer(Answer): ...
else:
    RunAnswer = create_model(
        "RunAnswer",
        __base__=Answer,
        __doc__="A run: its complete configuration, its queue, its progress and its result.",
        __module__=__name__,
        **{field.name: (field.type, Field(description=field.meaning)) for field in ANSWERED},
    )
    RunAnswer.model_config["json_schema_extra"] = {"examples": [EXAMPLE_RUN]}


class RunList(Answer):
    runs: list[RunAnswer]
    next_cursor: str | None = Field(description="Send it as `cursor` to get the next page; null on the last page.")


class RunRequest(RunConfig):
    """The configuration of a new run, and its project."""

    project: Project = Field("", description=PROJECT)

    def config(self) -> RunConfig:
        """The configuration without the project."""
        return RunConfig.model_validate(self.model_dump(exclude={"project"}))


class RunPatch(QueueChange):
    """The fields of a run that can be changed. The queue, priority and GPU can change only while the run is queued. Omitted
    fields do not change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "baseline", "tags": ["paper"], "notes": "seed 3"}]})
    name: Name | None = None
    tags: Annotated[list[Tag], Field(max_length=MAX_TAGS)] | None = None
    notes: Annotated[Text, StringConstraints(max_length=MAX_NOTES)] | None = None
    project: Project | None = Field(None, description=PROJECT)
    hidden: bool | None = Field(None, description="If true, lists leave the run out. Comparisons and sweeps always include it.")


class CloneRequest(QueueChange):
    """Fields to change in the copy, by dotted path. By default the copy waits in the same queue as the original."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"set": {"optimizer.lr": 0.005}}]})
    set: dict[str, Any] = Field(default_factory=dict, max_length=50)
    project: Project | None = Field(None, description="By default the project of the original.")


class AlertAnswer(Answer):
    """An event that a person should see, with its step, layer and tensor."""

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
    next_cursor: int | None = Field(
        description="In the list of all alerts: send it as `cursor` to get the next page; null on the last page."
    )


class QuarantineAnswer(Answer):
    kind: Literal["disk", "memory", "gpu", "data"] = Field(description="The part of the worker's machine that is the cause.")
    reason: str
    since: float


class WorkerAnswer(Answer):
    id: str
    host: str
    slots: int
    capabilities: dict[str, Any] = Field(description="Devices, scan backends, data sets, versions.")
    started_at: float
    seen_at: float
    alive: bool = Field(description="True if it sent a heartbeat within the last 30 s.")
    runs: list[int] = Field(description="The runs that it is training.")
    quarantine: QuarantineAnswer | None = Field(
        description="Why it claims no runs at present because of its machine. null: it claims runs."
    )


class WorkerList(Answer):
    workers: list[WorkerAnswer]


class Health(Answer):
    status: Literal["ok", "unavailable"]
    version: str
    checks: dict[str, str] = Field(default_factory=dict)
