"""The schemas of the messages that a program posts (docs/protocol.md)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from server.ingest.schemas import (
    AnySeries,
    Count,
    EpochSeconds,
    Extreme,
    FormRecord,
    Group,
    Length,
    Meaning,
    Message,
    Number,
    Reason,
    Record,
    Result,
    Results,
    SeriesName,
    Step,
    Tensor,
    Unit,
    Width,
    check,
    kept_json,
    refused,
    rule,
)
from stablessm_core.report.messages import CatalogueMessage, EndMessage, EnvironmentMessage, MetricsMessage, TruncateMessage
from stablessm_core.spec.section import not_allowed
from stablessm_core.telemetry import limits as most
from stablessm_core.telemetry.blocks import BUCKET, LEVELS, STATS, PackedBlock
from stablessm_core.telemetry.detectors import KINDS, Alert, Severity
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.free_json import Refused, shown
from stablessm_core.telemetry.metrics import check_metrics
from stablessm_core.telemetry.series import SO_FAR, SeriesSpec
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.statuses import FINAL


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

    kind: Annotated[str, rule(lambda name: name in KINDS, ", ".join(KINDS))]
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
            raise refused(shown(given), f"a list of {', '.join(cls.model_fields)}")
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

    facts: Annotated[dict[str, Any], AfterValidator(kept_json)]

    @field_validator("facts")
    @classmethod
    def _check(cls, facts: dict[str, Any]) -> dict[str, Any]:
        try:
            check(Facts, facts)
        except Refused as error:
            raise not_allowed(error.field, error.given, error.allowed) from None
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

    status: Annotated[str, rule(lambda status: status in FINAL, ", ".join(FINAL))]
    reason: Reason
    result: Results | None = None
    divergence: Divergence | None = None
    ended_at: EpochSeconds | None = None

    @property
    def message(self) -> EndMessage:
        divergence = None if self.divergence is None else self.divergence.model_dump(exclude_unset=True)
        return EndMessage(self.status, self.reason, self.result, divergence, self.ended_at)


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
