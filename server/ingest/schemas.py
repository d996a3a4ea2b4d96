"""One schema for each noun of a recorded run: what a program may report, and what an archive may hold.

The messages of programs, the request that opens a run, and the records of an archive are made of these nouns, so each limit
stands once (stablessm_core.telemetry.limits). `refusal` says what a value lacks: the field, what was given and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stablessm_core.spec.alert_rules import ReportedAlerts
from stablessm_core.spec.config import Name, Tag
from stablessm_core.spec.errors import describe_items
from stablessm_core.spec.section import Section, Text
from stablessm_core.telemetry import limits as most
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.free_json import UNSTORABLE, Refused, check_json, shown
from stablessm_core.telemetry.how import How
from stablessm_core.telemetry.metrics import is_metric_group
from stablessm_core.telemetry.nonfinite import NONFINITE

EXAMPLE_ID = "0b6c1e0e-6d1f-4a55-9a4c-5c6a1f0a9d11"
Model = TypeVar("Model", bound=BaseModel)


def rule(fits: Callable[[Any], bool], allowed: str) -> AfterValidator:
    """A validator with a sentence about what is allowed."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise PydanticCustomError("value_error", "not allowed", {"allowed": allowed})
        return value

    return AfterValidator(check)


STORABLE = rule(lambda text: not UNSTORABLE.search(text), "text without the character NUL and without half of a surrogate pair")
NOT_METRICS = rule(lambda group: not is_metric_group(group), "groups other than those of free metrics (a MetricsRecord)")


def _matches(pattern: re.Pattern[str]) -> AfterValidator:
    return rule(lambda text: pattern.fullmatch(text) is not None, f"text that matches {pattern.pattern}")


def _uuid(value: str) -> str:
    try:
        return str(UUID(value))
    except ValueError:
        raise PydanticCustomError("value_error", "a UUID is needed, such as {example}", {"example": EXAMPLE_ID}) from None


def _is_result(value: Any) -> bool:
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= most.MAX_STEP
    return value is None or isinstance(value, bool | float) or value in NONFINITE


def _is_step_size(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return value in (None, "dt") or (number and 0 < value <= most.MAX_REAL)


def kept_json(value: Any) -> Any:
    try:
        check_json(value, "")
    except Refused as error:
        raise refused(error.given, error.allowed) from None
    return value


def refused(given: str, allowed: str) -> PydanticCustomError:
    return PydanticCustomError("value_error", "it is {given}; allowed: {allowed}", {"given": given, "allowed": allowed})


Step = Annotated[int, Field(ge=0, le=most.MAX_STEP)]
Id = Annotated[str, StringConstraints(min_length=32, max_length=45), AfterValidator(_uuid)]
EpochSeconds = Annotated[float, Field(ge=0, le=1e11)]
Count = Annotated[int, Field(ge=1, le=most.MAX_STEP)]
Number = Annotated[int, Field(ge=0, le=most.MAX_NUMBER)]
Length = Annotated[int, Field(ge=1, le=most.MAX_NUMBER)]
Width = Annotated[int, Field(ge=1, le=most.MAX_WIDTH)]
Positive = Annotated[float, Field(ge=0, le=most.MAX_REAL)]
Real = Annotated[float, Field(ge=-most.MAX_REAL, le=most.MAX_REAL)]
Extreme = Annotated[float, rule(lambda value: not math.isnan(value), "numbers and infinities")]
Result = Annotated[Any, rule(_is_result, "numbers, true, false, null, and the words NaN, Infinity and -Infinity")]
ResultName = Annotated[str, Field(max_length=most.MAX_RESULT_NAME), STORABLE]
Results = Annotated[dict[ResultName, Result], Field(max_length=most.MAX_RESULTS)]
SeriesName = Annotated[str, Field(min_length=1, max_length=most.MAX_NAME), _matches(most.SERIES_NAME)]
Group = Annotated[str, Field(min_length=1, max_length=most.MAX_GROUP), _matches(most.GROUP_NAME), NOT_METRICS]
Unit = Annotated[str, Field(max_length=most.MAX_UNIT), STORABLE]
Meaning = Annotated[str, Field(max_length=most.MAX_MEANING), STORABLE]
Message = Annotated[str, Field(max_length=most.MAX_MESSAGE), STORABLE]
AnySeries = Annotated[str, Field(max_length=most.MAX_NAME), STORABLE]
Reason = Annotated[str, Field(max_length=most.MAX_REASON), STORABLE]
Tensor = Annotated[str, Field(max_length=most.MAX_TENSOR), STORABLE]
FormName = Annotated[str, Field(max_length=most.MAX_FORM_NAME), STORABLE]
HowName = Annotated[Text, StringConstraints(min_length=1, max_length=most.MAX_HOW_NAME)]
Notes = Annotated[Text, StringConstraints(max_length=most.MAX_NOTES)]
Project = Annotated[Text, StringConstraints(max_length=most.MAX_PROJECT)]
Tags = Annotated[list[Tag], Field(max_length=most.MAX_TAGS)]


class HowSection(Section):
    """How the run trains. Null means unknown; then no page and no verdict says anything that depends on it."""

    optimizer: HowName | None = None
    lr: Literal["recorded"] | Positive | None = Field(
        None, description='"recorded" if the learning rate of each step is recorded as optim/lr, else one number for all steps.'
    )
    momentum: Positive | None = None
    nesterov: bool | None = None
    grad_clip: Positive | None = Field(None, description="The norm to which the gradient is clipped.")
    length: Count | None = Field(None, description="The sequence length.")
    every: Count | None = Field(None, description="Every how many steps have a recorded row.")
    precision: HowName | None = None


class LayerSection(Section):
    """A layer of the reported model. Its place in the list is its number in the names of its series."""

    name: Annotated[Text, StringConstraints(min_length=1, max_length=most.MAX_LAYER_NAME)]
    path: Annotated[Text, StringConstraints(min_length=1, max_length=most.MAX_LAYER_PATH)]
    width: Width
    note: Annotated[Text, StringConstraints(max_length=most.MAX_LAYER_NOTE)] | None = None


Layers = Annotated[list[LayerSection], Field(max_length=most.MAX_LAYERS)]


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
    project: Project = ""
    name: Name | None = None
    config: Annotated[Any, AfterValidator(kept_json)] = Field(
        default_factory=dict, description="Any JSON of at most 64 KiB and 32 levels."
    )
    tags: Tags = Field(default_factory=list)
    notes: Notes = ""
    how: HowSection | None = None
    layers: Layers | None = None
    alerts: ReportedAlerts | None = None
    total_steps: Count | None = Field(None, description="The steps of the whole training; null if unknown.")
    resume: Literal["never", "allow", "must", "complete"] = Field(
        "never", description="What happens if the id is known: `never` refuses it, `allow` and `must` continue the run. `must` "
        "refuses an unknown id. `complete` is `allow`, but a run that has ended stays so: records only add its missing numbers.",
    )  # fmt: skip
    from_step: Step | None = Field(
        None, description="The last step to keep when the run continues: later steps are deleted. null keeps all steps."
    )
    started_at: EpochSeconds | None = Field(
        None, description="When the program began, in UTC epoch seconds, if it began before this request. null: now."
    )
    client_time: EpochSeconds | None = Field(
        None, description="The program's clock, in UTC epoch seconds. Only its difference to the server's clock is reported."
    )

    @property
    def how_data(self) -> dict[str, Any] | None:
        """How the run trains (stablessm_core.telemetry.how); None if the program says nothing about it."""
        if self.how is None and self.total_steps is None:
            return None
        return How(**(self.how.model_dump() if self.how else {}), total_steps=self.total_steps).data

    @property
    def layers_data(self) -> list[dict[str, Any]] | None:
        return None if self.layers is None else [layer.model_dump() for layer in self.layers]

    @property
    def rules_data(self) -> list[dict[str, Any]] | None:
        return None if self.alerts is None else [rule.model_dump() for rule in self.alerts.rules]


class Record(BaseModel):
    """A strict model of what a stranger sent. NaN and infinities are numbers."""

    model_config = ConfigDict(strict=True, extra="forbid")


class FormRecord(Record):
    """A form that this version can compute (stablessm_core.telemetry.forms)."""

    map: FormName
    time: Literal["discrete", "continuous"]
    rule: FormName
    scale: Real = 1.0
    a: Real = 1.0
    b: Real = 0.5
    dt: Annotated[Any, rule(_is_step_size, "a positive number, or dt")] = None
    length: Length | None = None
    phase: FormName | None = None
    gate: bool = False
    bounded: bool = True

    @model_validator(mode="after")
    def _check(self) -> FormRecord:
        try:
            Form.from_data(self.model_dump())
        except (ValueError, KeyError, TypeError) as error:
            raise refused(f"not a form: {str(error)[:300]}", "a form that this version can compute") from None
        return self


def check(model: type[Model], data: Any) -> Model:
    """The data as this model. Raises Refused."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise refusal(error, model) from None


def refusal(error: ValidationError, model: type[BaseModel]) -> Refused:
    """The first problem: its field, what was given, and what is allowed."""
    item = error.errors(include_url=False)[0]
    field, message, allowed = describe_items([item], model)[0]
    context = item.get("ctx", {})
    if item["type"] == "missing":
        return Refused(field, "missing", "needed")
    if item["type"] == "extra_forbidden":
        return Refused(field[:200], "unknown", allowed or "fields of this version")
    given = str(context.get("given") or shown(item["input"]))
    return Refused(field, given, allowed or message)
