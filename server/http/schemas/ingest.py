"""The JSON with which a program opens a run that it trains itself, and the answers to its posts."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from pydantic import AfterValidator, ConfigDict, Field, StringConstraints, field_validator
from pydantic_core import PydanticCustomError

from server.http.schemas.runs import Answer
from stablessm_core.spec.alert_rules import ReportedAlerts
from stablessm_core.spec.config import Name, Tag
from stablessm_core.spec.section import Section, Text
from stablessm_core.telemetry.frames import LIMITS
from stablessm_core.telemetry.free_json import Refused, check_json
from stablessm_core.telemetry.strict_messages import MAX_STEP, MAX_WIDTH

MAX_LAYERS = 1000
EXAMPLE_ID = "0b6c1e0e-6d1f-4a55-9a4c-5c6a1f0a9d11"


def _uuid(value: str) -> str:
    try:
        return str(UUID(value))
    except ValueError:
        raise PydanticCustomError("value_error", "a UUID is needed, such as {example}", {"example": EXAMPLE_ID}) from None


Id = Annotated[str, StringConstraints(min_length=32, max_length=45), AfterValidator(_uuid)]
Short = Annotated[Text, StringConstraints(min_length=1, max_length=60)]
Positive = Annotated[float, Field(ge=0, le=1e30)]
Count = Annotated[int, Field(ge=1, le=MAX_STEP)]


class HowSection(Section):
    """How the run trains. Null means unknown; then no page and no verdict says anything that depends on it."""

    optimizer: Short | None = None
    lr: Literal["recorded"] | Positive | None = Field(
        None, description='"recorded" if the learning rate of each step is recorded as optim/lr, else one number for all steps.'
    )
    momentum: Positive | None = None
    nesterov: bool | None = None
    grad_clip: Positive | None = Field(None, description="The norm to which the gradient is clipped.")
    length: Count | None = Field(None, description="The sequence length.")
    every: Count | None = Field(None, description="Every how many steps have a recorded row.")
    precision: Short | None = None


class LayerSection(Section):
    """A layer of the reported model. Its place in the list is its number in the names of its series."""

    name: Annotated[Text, StringConstraints(min_length=1, max_length=120)]
    path: Annotated[Text, StringConstraints(min_length=1, max_length=200)]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    note: Annotated[Text, StringConstraints(max_length=500)] | None = None


class OpenRequest(Section):
    """A run that another program trains and reports."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "id": EXAMPLE_ID,
                    "project": "hybrid",
                    "name": "mamba-130m",
                    "config": {"model": "mamba-130m", "lr": 3e-4},
                    "how": {"optimizer": "adamw", "lr": "recorded"},
                    "layers": [{"name": "mixer", "path": "backbone.layers.0.mixer", "width": 16}],
                    "total_steps": 10_000,
                    "resume": "allow",
                }
            ]
        }
    )
    id: Id = Field(description="A UUID that the program chooses. It names the run when the program opens it again.")
    project: Annotated[Text, StringConstraints(max_length=200)] = ""
    name: Name | None = None
    config: Any = Field(default_factory=dict, description="Any JSON of at most 64 KiB and 32 levels.")
    tags: Annotated[list[Tag], Field(max_length=20)] = Field(default_factory=list)
    notes: Annotated[Text, StringConstraints(max_length=20_000)] = ""
    how: HowSection | None = None
    layers: Annotated[list[LayerSection], Field(max_length=MAX_LAYERS)] | None = None
    alerts: ReportedAlerts | None = None
    total_steps: Count | None = Field(None, description="The steps of the whole training; null if unknown.")
    resume: Literal["never", "allow", "must", "complete"] = Field(
        "never", description="What happens if the id is known: `never` refuses it, `allow` and `must` continue the run. `must` "
        "refuses an unknown id. `complete` is `allow`, but a run that has ended stays so: records only add its missing numbers.",
    )  # fmt: skip
    from_step: Annotated[int, Field(ge=0, le=MAX_STEP)] | None = Field(
        None, description="The last step to keep when the run continues: later steps are deleted. null keeps all steps."
    )
    started_at: Annotated[float, Field(ge=0, le=1e11)] | None = Field(
        None, description="When the program began, in UTC epoch seconds, if it began before this request. null: now."
    )
    client_time: Annotated[float, Field(ge=0, le=1e11)] | None = Field(
        None, description="The program's clock, in UTC epoch seconds. Only its difference to the server's clock is reported."
    )

    @field_validator("config")
    @classmethod
    def _check_config(cls, value: Any) -> Any:
        try:
            check_json(value, "config")
        except Refused as refused:
            message = "it is {given}; allowed: {allowed}"
            raise PydanticCustomError("value_error", message, {"given": refused.given, "allowed": refused.allowed}) from None
        return value


class LimitsAnswer(Answer):
    """What one post may contain. A larger post is refused with 413, a larger record with 422."""

    body_bytes: int = Field(description="The whole body.")
    record_bytes: int = Field(description="One record.")
    decoded_bytes: int = Field(description="All blocks of a body after decompression.")
    records: int = Field(description="Frames in a body.")
    keys: int = Field(description="Free metrics of a run.")


class OpenAnswer(Answer):
    """An open run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": 12,
                    "attempt": 1,
                    "url": "/runs/12",
                    "next_step": 1,
                    "lease_seconds": 60.0,
                    "limits": vars(LIMITS),
                    "server_time": 1763712000.0,
                    "clock_offset_seconds": -0.4,
                }
            ]
        }
    )
    run_id: int
    attempt: int = Field(description="Send it as `X-Attempt` with every post. Opening the run again ends this attempt.")
    url: str = Field(description="The run's page.")
    next_step: int = Field(description="The step after the last stored step.")
    lease_seconds: float = Field(description="A run without a post for this long is `lost` until its next post.")
    limits: LimitsAnswer
    server_time: float
    clock_offset_seconds: float | None = Field(
        description="The program's clock minus the server's; null if the request has no `client_time`."
    )


class RecordsAnswer(Answer):
    """What is stored after a post."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"seq": 41, "stored_through": 640, "stop_requested": False}]})
    seq: int = Field(description="Number of the run's newest event.")
    stored_through: int = Field(description="The last stored step.")
    stop_requested: bool = Field(description="True if somebody asked the run to stop. The program decides what it does.")


class DifferenceAnswer(Answer):
    """A value that is not the stored value of its step."""

    step: int
    name: str
    stored: float | str = Field(description="The value in the run. NaN and the infinities are texts.")
    given: float | str = Field(description="The value in the records.")


class CompareAnswer(Answer):
    """How records differ from what is stored of a run."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "run_id": 12, "url": "/runs/12", "names": [], "differing": 1, "unknown": 0, "last_step": 640,
                    "first": [{"step": 3, "name": "train/loss", "stored": 0.5, "given": 0.7}],
                }
            ]
        }
    )  # fmt: skip
    run_id: int | None = Field(description="null if the id is unknown.")
    url: str | None = Field(description="The run's page.")
    names: list[str] = Field(description="The run's series, if the body has no records.")
    differing: int = Field(description="Values that are not the stored values of their steps.")
    first: list[DifferenceAnswer] = Field(description="The first 100 of them.")
    unknown: int = Field(description="Steps between the first and the last given one that are stored and were not given.")
    last_step: int = Field(description="The last stored step of the given names; -1 if there is none.")
