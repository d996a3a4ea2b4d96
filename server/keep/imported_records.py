"""The records of an archive, as the readers of a run need them: the manifest, the run, its series, alerts, history and autopsy.

A column's type says less than its readers assume. A time must be a date that a page can show, a form must be one that this
version can compute, and the step of a divergence must be a number. These schemas state what the readers assume.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, ValidationError, model_validator

from server.ingest.message_schemas import Divergence, Facts
from server.ingest.schemas import (
    Count,
    FormRecord,
    HowSection,
    Layers,
    Notes,
    Number,
    Project,
    Results,
    Step,
    Tags,
    Width,
)
from server.keep.archive import ArchiveError
from server.lifecycle.autopsy_findings import StoredFindings
from server.series.catalogue_rules import catalogue_problem, name_problem
from stablessm_core.spec.alert_rules import RuleList
from stablessm_core.spec.config import Name
from stablessm_core.spec.errors import describe_errors
from stablessm_core.spec.section import Text
from stablessm_core.telemetry.detectors import Severity
from stablessm_core.telemetry.limits import GROUP_NAME, MAX_NAME, MAX_RUN_COLUMNS, SERIES_NAME
from stablessm_core.telemetry.metrics import METRIC_GROUPS, is_metric_group, name_error
from stablessm_core.telemetry.statuses import AT_REST, LOST, Status

MAX_TRAINED_STEP = 10_000_000  # the largest step that a configuration allows
MAX_SEQ = 10**8
MAX_CELLS = 10_000  # combinations of a sweep's grid
YEAR_9999 = 253_370_764_800.0  # later times cannot be shown as dates

Seq = Annotated[int, Field(ge=1, le=MAX_SEQ)]
Time = Annotated[float, Field(ge=0, lt=YEAR_9999)]
Finite = Annotated[float, AllowInfNan(False)]
Extreme = Finite | Literal["Infinity", "-Infinity"] | None
Model = TypeVar("Model", bound=BaseModel)


def _is_at_rest(value: str) -> str:
    if value not in AT_REST:
        raise ValueError(f"the run must have ended; allowed: {', '.join(AT_REST)}")
    return value


def _is_value(value: str) -> str:
    try:
        float(value or 0)
    except ValueError:
        raise ValueError("a number as text is needed") from None
    return value


class Record(BaseModel):
    """Base class of the schemas. Fields of newer versions are allowed; `_row` of server.keep.imports has removed the columns
    that this version does not know."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class StoredHow(HowSection):
    """How a reported run trains, with the steps of its whole training, which the request that opens a run names apart."""

    total_steps: Count | None = None


class StoredRun(Record):
    """The columns of a run whose readers assume more than the column's type."""

    name: Name | None
    tags: Tags
    notes: Notes = ""
    status: Annotated[str, AfterValidator(_is_at_rest)]
    created_at: Time
    started_at: Time | None
    finished_at: Time
    compacted_at: Time | None
    attempt: Number
    seq: Annotated[int, Field(ge=0, le=MAX_SEQ)]
    step: Step
    steps_per_second: Annotated[float, Field(ge=0)] | None
    environment: Facts | None
    result: Results | None
    divergence: Divergence | None
    forms: Annotated[list[FormRecord], Field(max_length=1000)] | None
    forked_from: Annotated[int, Field(ge=1)] | None
    forked_at_step: Step | None
    fork_changes: Annotated[dict[str, Finite | bool | str | None], Field(max_length=50)] | None
    kind: Literal["trained", "reported"] = "trained"
    project: Project = ""
    how: StoredHow | None
    layers: Layers | None
    rules: RuleList | None = None
    largest_ratio: Extreme
    largest_relative_step: Extreme
    nearest_distance: Extreme
    overflow_budget: Extreme

    @model_validator(mode="after")
    def _check_kind(self) -> StoredRun:
        reported = self.kind == "reported"
        if reported != (self.how is not None):
            raise ValueError(f"how cannot be {'null' if reported else 'given'}, because the run is {self.kind}")
        if self.status == LOST and not reported:
            raise ValueError("status cannot be 'lost', because the run is not reported")
        return self

    @model_validator(mode="after")
    def _check_fork(self) -> StoredRun:
        if self.forked_from is not None and self.forked_at_step is None:
            raise ValueError("forked_at_step cannot be null, because forked_from is not")
        return self


class StoredSeries(Record):
    """A series of the catalogue. The name of a layer's series contains its group, because derived series are found by name."""

    name: Annotated[str, Field(min_length=1, max_length=MAX_NAME)]
    group_name: Annotated[str, Field(pattern=f"^{GROUP_NAME.pattern}$")]
    column_offset: Annotated[int, Field(ge=0, lt=MAX_RUN_COLUMNS)]
    width: Width
    unit: str
    derived: bool
    form: FormRecord | None

    @model_validator(mode="after")
    def _check_name(self) -> StoredSeries:
        if is_metric_group(self.group_name):
            if allowed := self._not_a_metric():
                raise ValueError(f"name {self.name!r} does not fit the group {self.group_name!r}; allowed: {allowed}")
            return self
        if not SERIES_NAME.fullmatch(self.name):
            raise ValueError(f"name {self.name!r} has characters that no series has")
        if (problem := name_problem(self.name, self.group_name, derived=self.derived)) is not None:
            raise ValueError(problem)
        return self

    def _not_a_metric(self) -> str:
        number = self.group_name.removeprefix(METRIC_GROUPS)
        if self.width != 1 or self.derived or not (number.isascii() and number.isdigit() and len(number) <= 6):
            return "a series of width 1 in a group such as metrics/0"
        return name_error(self.name)


class StoredAlert(Record):
    seq: Seq
    attempt: Number
    kind: Annotated[str, Field(pattern=r"^[a-z0-9_]+$")]
    severity: Severity
    step: Step
    layer: Number | None
    eigenvalue: Number | None
    value: Annotated[str, AfterValidator(_is_value)] = ""
    created_at: Time


class StoredTransition(Record):
    seq: Seq
    status: Status
    attempt: Number
    step: Step
    truncated_from: Step | None
    at: Time


class StoredAutopsy(Record):
    """An autopsy that is done. Its findings have the form in which the page, the API and the verdict read them."""

    step: Step | None
    findings: StoredFindings
    requested_at: Time
    started_at: Time | None
    ended_at: Time | None


class SweepBase(Record):
    name: Name | None = None


class StoredSweep(Record):
    id: int
    base: SweepBase
    grid: Annotated[dict[str, Annotated[list[Any], Field(min_length=1)]], Field(max_length=10)]
    created_at: Time
    name: Name | None = None

    @model_validator(mode="after")
    def _check_grid(self) -> StoredSweep:
        if (cells := math.prod(map(len, self.grid.values()))) > MAX_CELLS:
            raise ValueError(f"grid has {cells:,} combinations; at most {MAX_CELLS:,} are allowed")
        return self


class ListedRun(Record):
    id: Annotated[int, Field(ge=1)]
    sweep: int | None


class StoredManifest(Record):
    source: Annotated[Text, Field(max_length=2000)] = ""
    runs: list[ListedRun]
    sweeps: list[StoredSweep]


def check_record(where: str, model: type[Model], data: Any) -> Model:
    """The data as this model. Raises an ArchiveError that names the field, the given value and the allowed values."""
    try:
        return model.model_validate(data, extra="ignore")  # fields of newer versions
    except ValidationError as error:
        field, message, allowed = describe_errors(error, model)[0]
        message = message.replace("Value error, ", "")[:300]
        shown = f" (allowed: {allowed[:300]})" if allowed and allowed not in message else ""
        raise ArchiveError(f"{where}: {f'{field}: ' if field else ''}{message}{shown}") from None


def check_steps(where: str, run: dict[str, Any], rows: dict[str, list[dict[str, Any]]]) -> None:
    """Check that a trained run has no step beyond the longest training. Raises ArchiveError."""
    if run["kind"] != "trained":
        return
    steps = [("step", run["step"]), ("divergence.step", (run["divergence"] or {}).get("step"))]
    steps += [("alerts.step", row["step"]) for row in rows["alerts"]]
    steps += [(f"history.{name}", row[name]) for row in rows["history"] for name in ("step", "truncated_from")]
    for name, step in steps:
        if step is not None and step > MAX_TRAINED_STEP:
            raise ArchiveError(f"{where}: {name} cannot be {step}; allowed: at most {MAX_TRAINED_STEP:,}")


def check_catalogue(where: str, series: list[dict[str, Any]]) -> None:
    """Check the series of a run together. Raises ArchiveError."""
    if (problem := catalogue_problem(series)) is not None:
        raise ArchiveError(f"{where}: {problem}")
