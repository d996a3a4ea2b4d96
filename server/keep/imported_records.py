"""The records of an archive, as the readers of a run need them: the manifest, the run, its series, alerts, history and autopsy.

A column's type says less than its readers assume. A time must be a date that a page can show, a form must be one that this
version can compute, and the step of a divergence must be a number. These schemas state what the readers assume.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, AllowInfNan, BaseModel, ConfigDict, Field, ValidationError, model_validator

from server.keep.archive import ArchiveError
from server.lifecycle.autopsy_findings import StoredFindings
from stablessm_core.spec.config import Name, Tag
from stablessm_core.spec.errors import describe_errors
from stablessm_core.spec.section import Text
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.nonfinite import Spelling
from stablessm_core.telemetry.series import DERIVED_GROUPS, LAYER_GROUPS, MEASURED_GROUPS, has_every_eigenvalue, source_group
from stablessm_core.telemetry.statuses import FINAL, Status

MAX_STEP = 10_000_000  # the largest step that a configuration allows
MAX_SEQ = 10**8
MAX_WIDTH, MAX_COLUMNS = 1 << 20, 1 << 22  # columns of one series, and of all series of a run
MAX_SERIES = 10_000
MAX_CELLS = 10_000  # combinations of a sweep's grid
YEAR_9999 = 253_370_764_800.0  # later times cannot be shown as dates

Step = Annotated[int, Field(ge=0, le=MAX_STEP)]
Seq = Annotated[int, Field(ge=1, le=MAX_SEQ)]
Number = Annotated[int, Field(ge=0, lt=2**31)]
Time = Annotated[float, Field(ge=0, lt=YEAR_9999)]
Finite = Annotated[float, AllowInfNan(False)]
Extreme = Finite | Literal["Infinity", "-Infinity"] | None
Model = TypeVar("Model", bound=BaseModel)


def _is_final(value: str) -> str:
    if value not in FINAL:
        raise ValueError(f"the run must have ended; allowed: {', '.join(FINAL)}")
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


class StoredRun(Record):
    """The columns of a run whose readers assume more than the column's type."""

    name: Name | None
    tags: Annotated[list[Tag], Field(max_length=20)]
    notes: Annotated[Text, Field(max_length=20_000)] = ""
    status: Annotated[str, AfterValidator(_is_final)]
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
    largest_ratio: Extreme
    largest_relative_step: Extreme
    nearest_distance: Extreme
    overflow_budget: Extreme

    @model_validator(mode="after")
    def _check_fork(self) -> StoredRun:
        if self.forked_from is not None and self.forked_at_step is None:
            raise ValueError("forked_at_step cannot be null, because forked_from is not")
        return self


class StoredSeries(Record):
    """A series of the catalogue. The name of a layer's series contains its group, because derived series are found by name."""

    name: Annotated[str, Field(pattern=r"^[!-~]([ -~]*[!-~])?$")]
    group_name: Annotated[str, Field(pattern=r"^[!-~]+$")]
    column_offset: Annotated[int, Field(ge=0, lt=MAX_COLUMNS)]
    width: Annotated[int, Field(ge=1, le=MAX_WIDTH)]
    unit: str
    derived: bool
    form: StoredForm | None

    @model_validator(mode="after")
    def _check_layer(self) -> StoredSeries:
        if not self.group_name.startswith(LAYER_GROUPS):
            if self.derived or self.name.startswith(LAYER_GROUPS):
                raise ValueError(f"name {self.name!r} does not fit the group {self.group_name!r}")
            return self
        own = self.group_name.removesuffix(DERIVED_GROUPS).removesuffix(MEASURED_GROUPS)
        layer = own.removeprefix(LAYER_GROUPS).partition(".")[0]
        if "/" in own.removeprefix(LAYER_GROUPS) or not (layer.isascii() and layer.isdigit() and len(layer) <= 6):
            raise ValueError(f"group_name {self.group_name!r} does not name a layer")
        if self.name.rpartition("/")[0] != own:
            raise ValueError(f"name {self.name!r} does not fit the group {self.group_name!r}")
        return self


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


def check_catalogue(where: str, series: list[dict[str, Any]]) -> None:
    """Check the catalogue as a whole. Raises ArchiveError."""
    if len(series) > MAX_SERIES or sum(row["width"] for row in series) > MAX_COLUMNS:
        raise ArchiveError(f"{where}: it has {len(series):,} series; allowed: {MAX_SERIES:,} series with {MAX_COLUMNS:,} columns")
    forms: dict[str, dict[str, Any]] = {}
    for row in series:
        if row["form"] is not None and forms.setdefault(row["group_name"], row["form"]) != row["form"]:
            raise ArchiveError(f"{where}: the series of group {row['group_name']!r} have different forms")
    widths: dict[str, int] = {}
    for row in series:
        layer = source_group(row["group_name"])
        if not layer.startswith(LAYER_GROUPS) or layer.endswith(MEASURED_GROUPS) or not has_every_eigenvalue(row["name"]):
            continue
        if widths.setdefault(layer, row["width"]) != row["width"]:
            raise ArchiveError(f"{where}: the series of group {layer!r} have {widths[layer]:,} and {row['width']:,} eigenvalues")
    seen: set[str] = set()
    for row in series:
        if row["name"] in seen:
            raise ArchiveError(f"{where}: it holds the same record twice: the series {row['name']!r}")
        seen.add(row["name"])
