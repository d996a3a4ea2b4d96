"""One schema for each noun of a recorded run: what a program may report, and what an archive may hold.

The messages of programs, the request that opens a run, and the records of an archive are made of these nouns, so each limit
stands once (stablessm_core.telemetry.limits). `refusal` says what a value lacks: the field, what was given and what is allowed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from stablessm_core.report.messages import CatalogueMessage, EndMessage, EnvironmentMessage, MetricsMessage, TruncateMessage
from stablessm_core.spec.alert_rules import ReportedAlerts
from stablessm_core.spec.config import Name, Tag
from stablessm_core.spec.errors import describe_items
from stablessm_core.spec.section import Section, Text, not_allowed
from stablessm_core.telemetry import limits as most
from stablessm_core.telemetry.blocks import BUCKET, LEVELS, STATS, PackedBlock
from stablessm_core.telemetry.detectors import KINDS, Alert, Severity
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.free_json import UNSTORABLE, Refused, check_json, shown
from stablessm_core.telemetry.metrics import check_metrics, is_metric_group
from stablessm_core.telemetry.nonfinite import NONFINITE
from stablessm_core.telemetry.series import SO_FAR, SeriesSpec
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.statuses import FINAL

EXAMPLE_ID = "0b6c1e0e-6d1f-4a55-9a4c-5c6a1f0a9d11"
Model = TypeVar("Model", bound=BaseModel)


def _rule(fits: Callable[[Any], bool], allowed: str) -> AfterValidator:
    """A validator with a sentence about what is allowed."""

    def check(value: Any) -> Any:
        if not fits(value):
            raise PydanticCustomError("value_error", "not allowed", {"allowed": allowed})
        return value

    return AfterValidator(check)


STORABLE = _rule(lambda text: not UNSTORABLE.search(text), "text without the character NUL and without half of a surrogate pair")
NOT_METRICS = _rule(lambda group: not is_metric_group(group), "groups other than those of free metrics (a MetricsRecord)")


def _matches(pattern: re.Pattern[str]) -> AfterValidator:
    return _rule(lambda text: pattern.fullmatch(text) is not None, f"text that matches {pattern.pattern}")


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


def _kept_json(value: Any) -> Any:
    try:
        check_json(value, "")
    except Refused as refused:
        raise _refused(refused.given, refused.allowed) from None
    return value


def _refused(given: str, allowed: str) -> PydanticCustomError:
    return PydanticCustomError("value_error", "it is {given}; allowed: {allowed}", {"given": given, "allowed": allowed})


Step = Annotated[int, Field(ge=0, le=most.MAX_STEP)]
Count = Annotated[int, Field(ge=1, le=most.MAX_STEP)]
Number = Annotated[int, Field(ge=0, le=most.MAX_NUMBER)]
Length = Annotated[int, Field(ge=1, le=most.MAX_NUMBER)]
Width = Annotated[int, Field(ge=1, le=most.MAX_WIDTH)]
Positive = Annotated[float, Field(ge=0, le=most.MAX_REAL)]
Real = Annotated[float, Field(ge=-most.MAX_REAL, le=most.MAX_REAL)]
Extreme = Annotated[float, _rule(lambda value: not math.isnan(value), "numbers and infinities")]
Result = Annotated[Any, _rule(_is_result, "numbers, true, false, null, and the words NaN, Infinity and -Infinity")]
ResultName = Annotated[str, Field(max_length=most.MAX_RESULT_NAME), STORABLE]
Results = Annotated[dict[ResultName, Result], Field(max_length=most.MAX_RESULTS)]
SeriesName = Annotated[str, Field(min_length=1, max_length=most.MAX_NAME), _matches(most.NAME)]
Group = Annotated[str, Field(min_length=1, max_length=most.MAX_GROUP), _matches(most.GROUP), NOT_METRICS]
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
    id: Annotated[str, StringConstraints(min_length=32, max_length=45), AfterValidator(_uuid)] = Field(
        description="A UUID that the program chooses. It names the run when the program opens it again."
    )
    project: Project = ""
    name: Name | None = None
    config: Annotated[Any, AfterValidator(_kept_json)] = Field(
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
    client_time: Annotated[float, Field(ge=0, le=1e11)] | None = Field(
        None, description="The program's clock, in UTC epoch seconds. Only its difference to the server's clock is reported."
    )


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
    dt: Annotated[Any, _rule(_is_step_size, "a positive number, or dt")] = None
    length: Length | None = None
    phase: FormName | None = None
    gate: bool = False
    bounded: bool = True

    @model_validator(mode="after")
    def _check(self) -> FormRecord:
        try:
            Form.from_data(self.model_dump())
        except (ValueError, KeyError, TypeError) as error:
            raise _refused(f"not a form: {str(error)[:300]}", "a form that this version can compute") from None
        return self


class SeriesRecord(Record):
    """A series of the catalogue."""

    name: SeriesName
    group: Group
    width: Width
    unit: Unit
    meaning: Meaning
    derived: bool = False
    form: FormRecord | None = None

    @property
    def spec(self) -> SeriesSpec:
        form = None if self.form is None else Form.from_data(self.form.model_dump()).data
        return SeriesSpec(self.name, self.group, self.width, self.unit, self.meaning, self.derived, form)


class CatalogueRecord(Record):
    """Series that follow."""

    series: Annotated[list[SeriesRecord], Field(max_length=most.MAX_RECORD_SERIES)]

    @model_validator(mode="after")
    def _check(self) -> CatalogueRecord:
        if (columns := sum(one.width for one in self.series)) > most.MAX_COLUMNS:
            raise not_allowed("series", f"{columns:,} columns", f"at most {most.MAX_COLUMNS:,} columns")
        if len({one.name for one in self.series}) < len(self.series):
            raise not_allowed("series", "a list that names a series twice", "each name once")
        return self

    @property
    def message(self) -> CatalogueMessage:
        return CatalogueMessage([one.spec for one in self.series])


class AlertRecord(Record):
    """An alert that the program raises."""

    kind: Annotated[str, _rule(lambda name: name in KINDS, ", ".join(KINDS))]
    severity: Severity
    step: Step
    message: Message
    series: AnySeries = ""
    layer: Number | None = None
    eigenvalue: Number | None = None
    tensor: Tensor = ""
    value: float | None = None
    lasted: Count = 1


class BlockRecord(Record):
    """Where the numbers of a block belong. In a message it is a list of these fields in this order."""

    group: Group
    level: Annotated[int, Field(ge=0, le=LEVELS)]
    first_step: Step
    stride: Count
    shape: Any
    size: Count

    @model_validator(mode="before")
    @classmethod
    def _name(cls, given: Any) -> Any:
        if not isinstance(given, list) or len(given) != len(cls.model_fields):
            raise _refused(shown(given), f"a list of {', '.join(cls.model_fields)}")
        return dict(zip(cls.model_fields, given, strict=True))

    @model_validator(mode="after")
    def _check(self) -> BlockRecord:
        bucket, inner = BUCKET**self.level, [len(STATS)] if self.level else []
        if self.stride % bucket:
            raise not_allowed("stride", f"{self.stride:,}", f"multiples of {bucket:,} at level {self.level}")
        shape = self.shape
        whole = isinstance(shape, list) and all(type(n) is int for n in shape) and len(shape) == 2 + len(inner)
        if (
            not whole
            or shape[1:-1] != inner
            or not (1 <= shape[0] <= most.MAX_COLUMNS and 1 <= shape[-1] <= most.MAX_BLOCK_POINTS)
        ):
            allowed = f"[columns, {''.join(f'{n}, ' for n in inner)}points], at most {most.MAX_BLOCK_POINTS:,} points"
            raise not_allowed("shape", f"{shown(shape)}: {str(shape)[:60]}", allowed)
        if self.first_step + shape[-1] * self.stride - self.stride // bucket > most.MAX_STEP:
            raise not_allowed("first_step", f"{self.first_step:,}", f"a block that ends before step {most.MAX_STEP + 1:,}")
        return self


class FlushRecord(Record):
    """New numbers. The payloads of the blocks follow the head."""

    blocks: Annotated[list[BlockRecord], Field(max_length=most.MAX_BLOCKS)]
    alerts: Annotated[list[AlertRecord], Field(max_length=most.MAX_ALERTS)]
    step: Step
    steps_per_second: Annotated[float, Field(ge=0, le=1e12)] | None
    so_far: dict[str, Extreme] = Field(default_factory=dict)

    @field_validator("so_far")
    @classmethod
    def _check(cls, given: dict[str, float]) -> dict[str, float]:
        for name in given.keys() - SO_FAR.keys():
            raise not_allowed(name, "unknown", ", ".join(SO_FAR))
        return given

    def message(self, blocks: Sequence[PackedBlock]) -> Flush:
        alerts = [Alert(**vars(one)) for one in self.alerts]
        return Flush(blocks, alerts, self.step, self.steps_per_second, self.so_far)


class DataFacts(Record):
    """What a program says about its data."""

    model_config = ConfigDict(extra="allow")
    length: Length | None = None


class Facts(Record):
    """The facts that the verdict reads. All others are kept as they are."""

    model_config = ConfigDict(extra="allow")
    data: DataFacts | None = None
    parameters: Step | None = None


class EnvironmentRecord(Record):
    """Facts about the machine and its software."""

    facts: Annotated[dict[str, Any], AfterValidator(_kept_json)]

    @field_validator("facts")
    @classmethod
    def _check(cls, facts: dict[str, Any]) -> dict[str, Any]:
        try:
            check(Facts, facts)
        except Refused as refused:
            raise not_allowed(refused.field, refused.given, refused.allowed) from None
        return facts

    @property
    def message(self) -> EnvironmentMessage:
        return EnvironmentMessage(self.facts)


class TruncateRecord(Record):
    """The program went back: the steps after `to_step` are deleted."""

    to_step: Step
    reason: Reason

    @property
    def message(self) -> TruncateMessage:
        return TruncateMessage(self.to_step, self.reason)


class Divergence(Record):
    """Where a run first became NaN or infinite."""

    step: Step
    layer: Number | None = None
    eigenvalue: Number | None = None
    tensor: Tensor | None = None
    series: Tensor | None = None
    value: Result = None


class EndRecord(Record):
    """How the run ended."""

    status: Annotated[str, _rule(lambda status: status in FINAL, ", ".join(FINAL))]
    reason: Reason
    result: Results | None = None
    divergence: Divergence | None = None

    @property
    def message(self) -> EndMessage:
        divergence = None if self.divergence is None else self.divergence.model_dump(exclude_unset=True)
        return EndMessage(self.status, self.reason, self.result, divergence)


class MetricsRecord(Record):
    """Free metrics."""

    steps: Any
    values: Any

    @model_validator(mode="after")
    def _check(self) -> MetricsRecord:
        try:
            check_metrics(self.steps, self.values)
        except ValueError as error:  # the message is "field is given; allowed: ..."
            wrong, _, allowed = str(error).partition("; allowed: ")
            field, _, given = wrong.partition(" is ")
            raise not_allowed(field, given, allowed) from None
        return self

    @property
    def message(self) -> MetricsMessage:
        return MetricsMessage(self.steps, self.values)


RECORDS: dict[str, type[CatalogueRecord | EnvironmentRecord | TruncateRecord | EndRecord | MetricsRecord]] = {
    "CatalogueRecord": CatalogueRecord,
    "EnvironmentRecord": EnvironmentRecord,
    "TruncateRecord": TruncateRecord,
    "EndRecord": EndRecord,
    "MetricsRecord": MetricsRecord,
}


def check(model: type[Model], data: Any, field: str = "", *, newer: bool = False) -> Model:
    """The data as this model. newer: another version may have written it, so unknown fields are left out. Raises Refused."""
    try:
        return model.model_validate(data, extra="ignore" if newer else None)
    except ValidationError as error:
        refused = refusal(error, model)
    raise Refused(".".join(part for part in (field, refused.field) if part), refused.given, refused.allowed)


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
