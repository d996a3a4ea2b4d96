"""The records of an archive, as the readers of a run need them: the manifest, the run, its series, alerts, history and autopsy.

A column's type says less than its readers assume. A time must be a date that a page can show, a form must be one that this
version can compute, and the step of a divergence must be a number. These schemas state what the readers assume.
"""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, ValidationError, model_validator

from server.keep.archive import ArchiveError
from server.lifecycle.autopsy_findings import StoredFindings
from server.series.catalogue_rules import MAX_COLUMNS, catalogue_problem, name_problem
from stablessm_core.spec.alert_rules import RuleList
from stablessm_core.spec.config import Name, Tag
from stablessm_core.spec.errors import describe_errors
from stablessm_core.spec.section import Text
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.metrics import MAX_NAME, METRIC_GROUPS, is_metric_group, name_error
from stablessm_core.telemetry.nonfinite import Spelling
from stablessm_core.telemetry.statuses import AT_REST, LOST, Status

MAX_STEP = 2**53 - 1  # the largest step of a reported run; browsers cannot hold larger whole numbers
MAX_TRAINED_STEP = 10_000_000  # the largest step that a configuration allows
MAX_SEQ = 10**8
MAX_WIDTH = 1 << 20  # columns of one series
MAX_LAYERS = 10_000  # layers of a reported run
MAX_CELLS = 10_000  # combinations of a sweep's grid
YEAR_9999 = 253_370_764_800.0  # later times cannot be shown as dates

Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Seq = Annotated[int, Field(ge=1, le=MAX_SEQ)]
Number = Annotated[int, Field(ge=0, lt=2**31)]
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


class StoredForm(Record):
    """A form that this version can compute (stablessm_core.telemetry.forms)."""

    model_config = ConfigDict(extra="forbid")
    map: str
    time: Literal["discrete", "continuous"]
    rule: str
    scale: float = 1.0
    a: float = 1.0
    b: float = 0.5
    dt: Literal["dt"] | Annotated[float, Field(gt=0)] | None = None
    length: Annotated[int, Field(ge=1, le=2**31)] | None = None
    phase: str | None = None
    gate: bool = False
    bounded: bool = True

    @model_validator(mode="after")
    def _check_form(self) -> StoredForm:
        Form.from_data(self.model_dump())
        return self


class Divergence(Record):
    """Where a run first became NaN or infinite."""

    model_config = ConfigDict(extra="allow")
    step: Step
    layer: Number | None = None
    eigenvalue: Number | None = None
    tensor: str | None = None
    value: Finite | Spelling | None = None


class DataFacts(Record):
    model_config = ConfigDict(extra="allow")
    length: Annotated[int, Field(ge=1, le=2**31)] | None = None


class Environment(Record):
    """The parts of an environment that the verdict reads. The pages show all other parts as they are."""

    model_config = ConfigDict(extra="allow")
    data: DataFacts | None = None
    parameters: Annotated[int, Field(ge=0, le=2**53)] | None = None


class StoredHow(Record):
    """How a reported run trains (stablessm_core.telemetry.how)."""

    optimizer: Annotated[Text, Field(max_length=60)] | None = None
    lr: Annotated[float, Field(ge=0)] | Literal["recorded"] | None = None
    momentum: Annotated[float, Field(ge=0)] | None = None
    nesterov: bool | None = None
    grad_clip: Annotated[float, Field(ge=0)] | None = None
    length: Annotated[int, Field(ge=1, le=2**31)] | None = None
    every: Annotated[int, Field(ge=1, le=MAX_STEP)] | None = None
    precision: Annotated[Text, Field(max_length=60)] | None = None
    total_steps: Annotated[int, Field(ge=1, le=MAX_STEP)] | None = None


class StoredLayer(Record):
    """A layer of a reported run."""

    name: Annotated[Text, Field(max_length=1000)]
    path: Annotated[Text, Field(max_length=1000)]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    note: Annotated[Text, Field(max_length=1000)] | None = None


class StoredRun(Record):
    """The columns of a run whose readers assume more than the column's type."""

    name: Name | None
    tags: Annotated[list[Tag], Field(max_length=20)]
    notes: Annotated[Text, Field(max_length=20_000)] = ""
    status: Annotated[str, AfterValidator(_is_at_rest)]
    created_at: Time
    started_at: Time | None
    finished_at: Time
    compacted_at: Time | None
    attempt: Number
    seq: Annotated[int, Field(ge=0, le=MAX_SEQ)]
    step: Step
    steps_per_second: Annotated[float, Field(ge=0)] | None
    environment: Environment | None
    result: Annotated[dict[Annotated[str, Field(max_length=100)], Finite | bool | Spelling | None], Field(max_length=100)] | None
    divergence: Divergence | None
    forms: Annotated[list[StoredForm], Field(max_length=1000)] | None
    forked_from: Annotated[int, Field(ge=1)] | None
    forked_at_step: Step | None
    fork_changes: Annotated[dict[str, Finite | bool | str | None], Field(max_length=50)] | None
    kind: Literal["trained", "reported"] = "trained"
    project: Annotated[Text, Field(max_length=200)] = ""
    how: StoredHow | None
    layers: Annotated[list[StoredLayer], Field(max_length=MAX_LAYERS)] | None
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
    group_name: Annotated[str, Field(pattern=r"^[!#-\[\]-~]+$")]
    column_offset: Annotated[int, Field(ge=0, lt=MAX_COLUMNS)]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    unit: str
    derived: bool
    form: StoredForm | None

    @model_validator(mode="after")
    def _check_name(self) -> StoredSeries:
        if is_metric_group(self.group_name):
            if allowed := self._not_a_metric():
                raise ValueError(f"name {self.name!r} does not fit the group {self.group_name!r}; allowed: {allowed}")
            return self
        if not re.fullmatch(r"[!-~]([ -~]*[!-~])?", self.name):
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
    severity: Literal["warning", "critical"]
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
        return model.model_validate(data)
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
