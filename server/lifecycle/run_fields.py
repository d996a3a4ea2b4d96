"""The table that defines all fields of a run. Answers, list columns, filters, examples, docs and `web/types.d.ts` are generated
from this table.

A row of the table has a field's type and example in the API's answer, and the SQL that reads the field. It may also describe a
filter and a list column. `make docs` writes the files that cannot read the table at run time (docs/api.md, web/types.d.ts); a
test compares these files with the table.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Literal

from sqlalchemy import BigInteger, ColumnElement, Float, and_, bindparam, cast, func, not_, or_, select

from server.database.models import AlertRow, Json, OptionalJson, Run, Sweep
from server.lifecycle.submitters import SUBMITTER
from stablessm_core.spec.config import RunConfig
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.forms import Form
from stablessm_core.telemetry.nonfinite import NONFINITE
from stablessm_core.telemetry.statuses import OPEN, STATUSES, Status
from stablessm_core.verdict import CAUSES

FilterKind = Literal["number", "text", "flag", "time", "seconds", "tag", "map", "layer", "alerts", "submitter"]
ColumnKind = Literal["number", "text", "time", "seconds", "bytes", "link", "own"]  # own: the page has special markup for it

_RUN, _ALERT = Run.__table__.c, AlertRow.__table__.c
_ALERTS = select(func.count()).where(_ALERT.run_id == _RUN.id).correlate(Run.__table__).scalar_subquery()
# a sweep without a name has the name of its base configuration
SWEEP_NAME: ColumnElement[str | None] = func.coalesce(Sweep.name, Sweep.base["name"].as_string())
_SWEEP_NAME = select(SWEEP_NAME).where(Sweep.id == _RUN.sweep_id).correlate(Run.__table__).scalar_subquery()
_WORKER = func.coalesce(_RUN.owner, _RUN.worker)
_LOSS, _EVAL_LOSS = (_RUN.result[name].as_string() for name in ("train_loss", "eval_loss"))
# The run finished, and its last training loss and its last evaluation loss, if it has one, are finite.
FINITE: ColumnElement[bool] = and_(
    _RUN.status == "finished",
    _LOSS.is_not(None),
    _LOSS.not_in(NONFINITE),
    or_(_EVAL_LOSS.is_(None), _EVAL_LOSS.not_in(NONFINITE)),
)
LOST: ColumnElement[bool] = and_(_RUN.status.not_in(OPEN), not_(FINITE))
# the training steps in total: from the configuration of a trained run, or from `how` of a reported run; None if unknown
STEPS = func.coalesce(
    cast(_RUN.config["train", "steps"].as_string(), BigInteger), cast(_RUN.how["total_steps"].as_string(), BigInteger)
)
_MAYBE_INFINITE = "JsonNumber | null"


@dataclass(frozen=True)
class Filter:
    """How people filter and sort by a field. By default a filter uses the field's name and SQL."""

    kind: FilterKind
    name: str = ""
    sql: ColumnElement[Any] | None = None
    nullable: bool | None = None  # None: taken from the database's schema
    values: tuple[str, ...] = ()  # all possible values, if they are few
    order: ColumnElement[Any] | None = None  # the expression to sort by, if the SQL's value changes with time


@dataclass(frozen=True)
class Shown:
    """A column of the list of runs. `sort`: the filter field that sorts by this column, "" if there is none."""

    title: str
    kind: ColumnKind
    meaning: str = ""
    name: str = ""  # "": the filter's name or, without a filter, the field's name
    sort: str | None = None  # None: the column's name


@dataclass(frozen=True)
class RunField:
    """A field of a run.

    type: the field's type in answers; None if answers do not contain the field. sql: the column or expression that reads the
    field; None if the field is computed from other fields.
    """

    name: str
    type: Any
    example: Any = None
    meaning: str | None = None
    sql: ColumnElement[Any] | None = None
    filter: Filter | None = None
    column: Shown | None = None
    typescript: str = ""  # the TypeScript type; "": derived from `type`

    @property
    def is_json(self) -> bool:
        """True if the database stores the field as JSON text, which the answer contains unchanged."""
        return self.sql is not None and self.sql.type in (Json, OptionalJson)

    @property
    def filter_name(self) -> str:
        return (self.filter and self.filter.name) or self.name

    @property
    def column_name(self) -> str:
        return (self.column and self.column.name) or self.filter_name


def ago(seconds: float) -> ColumnElement[float]:
    """SQL for the time `seconds` before now. Each execution computes the time again, because statements are cached."""
    return bindparam(None, unique=True, callable_=lambda: time.time() - seconds, type_=Float(53))


FIELDS = (
    RunField("id", int, 1, "The run's number.", _RUN.id, Filter("number")),
    RunField("url", str, "/runs/1", "The run's page."),
    RunField(
        "kind", Literal["trained", "reported"], "trained", "trained: by a worker of this service. reported: by another program.",
        _RUN.kind, Filter("text", values=("trained", "reported")), Shown("Kind", "text"), "string",
    ),
    RunField(
        "project", str, "hybrid", "The project to which it belongs; empty for none.", _RUN.project, Filter("text"),
        Shown("Project", "text"),
    ),
    RunField(
        "external_id", str | None, None, "The UUID that the reporting program chose; null for a trained run.", _RUN.external_id
    ),
    RunField("name", str | None, "best at 0.01", "The name that its user gave it.", _RUN.name, Filter("text")),
    RunField(
        "tags", list[str], ["demo"], "Its tags.", _RUN.tags, Filter("tag", "tag"), Shown("Tags", "own", name="tags", sort="")
    ),
    RunField("notes", str, "", "The user's notes on it.", _RUN.notes, Filter("text"), Shown("Notes", "text")),
    RunField(
        "status", Status, "running", "The stage of its life cycle.", _RUN.status, Filter("text", values=STATUSES),
        Shown("Status", "own"), "string",
    ),
    RunField("status_reason", str, "", "The reason for its status, as text.", _RUN.status_reason),
    RunField(
        "config", dict[str, Any], RunConfig.model_validate({"task": {"name": "polynomial_memory"}}).model_dump(mode="json"),
        "The complete configuration; empty for a reported run.", _RUN.config, typescript="RunConfig",
    ),
    RunField(
        "reported_config", Any, None, "The configuration of a reported run, any JSON; null for a trained run.",
        _RUN.reported_config, typescript="unknown",
    ),
    RunField(
        "how", dict[str, Any] | None, None,
        "How a reported run trains: optimizer, learning rate, clipping, length, precision, steps. Unknown values are null. null "
        "for a trained run, whose `config` says it.",
        _RUN.how,
    ),
    RunField(
        "layers", list[dict[str, Any]] | None, None,
        "Name, path, width and note of each layer of a reported run, in the order of the layers' numbers.", _RUN.layers,
        typescript="{ name: string; path: string; width: number; note: string | null }[] | null",
    ),
    RunField(
        "sweep_id", int | None, None, "Number of its sweep; null if it belongs to none.", _RUN.sweep_id,
        Filter("number", "sweep"), Shown("Sweep", "own"),
    ),
    RunField("sweep_name", str | None, None, "Name of its sweep; null if it belongs to none.", _SWEEP_NAME),
    RunField("cloned_from", int | None, None, "The run from which it was cloned.", _RUN.cloned_from),
    RunField(
        "submitted_by", int | None, 3, "Number of the token that submitted it; null for the token of the settings.",
        _RUN.submitted_by,
    ),
    RunField(
        "user_id", int | None, 2, "Number of the user who submitted it; 0 is the owner, null if the token has no user.",
        _RUN.user_id,
    ),
    RunField(
        "user", str, "alice", "Current name of the user who submitted it; the token's name if the token has no user.",
        SUBMITTER, Filter("submitter", "submitted_by", nullable=False),
        Shown("By", "own", "who submitted it, and the machine on which it runs or ran"),
    ),
    RunField(
        "queue", str, "default", "The queue in which it waits or waited.", _RUN.queue, Filter("text"), Shown("Queue", "text"),
    ),
    RunField("priority", int, 0, "Runs with a higher priority start first.", _RUN.priority, Filter("number")),
    RunField(
        "gpu", str, "", "Part of the name of the GPU that it needs; empty for any machine.", _RUN.needs_gpu, Filter("text")
    ),
    RunField(
        "created_at", float, 1763712000.0, "When it was submitted.",
        _RUN.created_at, Filter("time", "created"), Shown("Created", "time"),
    ),
    RunField(
        "started_at", float | None, 1763712001.2, "When it first started.", _RUN.started_at,
        Filter("time", "started"), Shown("Started", "time")
    ),
    RunField(
        "finished_at", float | None, None, "When it ended.", _RUN.finished_at, Filter("time", "finished"), Shown("Ended", "time"),
    ),
    RunField(
        "attempt", int, 1, "How many times a worker has claimed the run.", _RUN.attempt, Filter("number"),
        Shown("Attempts", "number", "how many times a worker has claimed it"),
    ),
    RunField(
        "worker", str | None, "host:4242:1763711999", "The worker that trains it, or trained it last.", _WORKER,
        Filter("text", nullable=True), Shown("Worker", "text"),
    ),
    RunField(
        "host", str | None, "host", "The machine on which it runs, or ran last.", _RUN.host, Filter("text"), Shown("Host", "text")
    ),
    RunField(
        "gpu_name", str | None, None, "The GPU on which it runs, or ran last; null if it has none.", _RUN.gpu_name,
        Filter("text"), Shown("GPU", "text"),
    ),
    RunField("cancel_requested", bool, False, "True if somebody has requested to cancel it.", _RUN.cancel_requested),
    RunField("seq", int, 17, "Number of the newest event; the live stream continues after it.", _RUN.seq),
    RunField("step", int, 412, "Completed training steps.", _RUN.step, Filter("number")),
    RunField("steps", int | None, 1000, "Training steps in total; null if unknown.", STEPS),
    RunField(
        "progress", float | None, 0.412, "step / steps, 0 to 1; null if the total is unknown.",
        column=Shown("Progress", "own", "training steps done", sort="step"),
    ),
    RunField("steps_per_second", float | None, 95.1, "Its current speed.", _RUN.steps_per_second),
    RunField("eta_seconds", float | None, 6.2, "Seconds until its end, at its current speed."),
    RunField(
        "environment", dict[str, Any] | None, {"device": "cpu", "torch": "2.13.0", "scan_backend": "torch"},
        "Device, versions, scan backend, parameter groups, data.", _RUN.environment,
    ),
    RunField(
        "result", dict[str, Any] | None, None, 'Final numbers; non-finite ones are "NaN", "Infinity", "-Infinity".', _RUN.result,
        typescript="{ train_loss?: JsonNumber | null; eval_loss?: JsonNumber | null } | null",
    ),
    RunField(
        "metrics", dict[str, float | str], {"train/loss": 0.0313},
        'The newest value of each scalar by its name: of every scalar in the answer for one run, of those that `metrics` names '
        'in a list. Non-finite ones are "NaN", "Infinity", "-Infinity".', typescript="Record<string, JsonNumber>",
    ),
    RunField(
        "divergence", dict[str, Any] | None, None, "Step, layer, eigenvalue and tensor of the first non-finite number.",
        _RUN.divergence,
    ),
    RunField(
        "forms", list[dict[str, Any]], [Form.of_map("best", "discrete").data],
        "How eigenvalues follow from weights: map, time and constants. Lists each form of its layers once, in the order of the "
        "layers.",
        _RUN.forms, typescript="{ map: string; time: string }[]",
    ),
    RunField(
        "alerts", int, 0, "How many alerts it has raised.", _ALERTS, Filter("alerts", nullable=False, values=tuple(KINDS)),
        Shown("Alerts", "own"),
    ),
    RunField("waits_for", str | None, None, "Why a queued run does not start yet."),
    RunField(
        "bytes_stored", int, 1_482_240, "Bytes of its recorded numbers in the database and of its checkpoint files.",
        _RUN.bytes_stored, Filter("number"), Shown("Size", "bytes", "recorded numbers and checkpoint files"),
    ),
    RunField(
        "largest_ratio", float | None, 3.7, "Largest finite |grad|/|w| so far, over all layers and eigenvalues.",
        _RUN.largest_ratio, Filter("number"),
        Shown("Largest ratio", "number", "largest |gradient| / |weight| so far, over all layers and eigenvalues"),
        _MAYBE_INFINITE,
    ),
    RunField(
        "largest_relative_step", float | None, 0.12,
        "Largest finite step of an eigenvalue so far, relative to its distance to the boundary.",
        _RUN.largest_relative_step, Filter("number"),
        Shown("Largest step", "number", "largest step of an eigenvalue / its distance from the boundary"), _MAYBE_INFINITE,
    ),
    RunField(
        "nearest_distance", float | None, 0.0093,
        "Smallest 1 - |eigenvalue| so far, with a gate at its mean; 0 is on the boundary, negative outside.",
        _RUN.nearest_distance, Filter("number"),
        Shown("Nearest", "number", "smallest distance of an eigenvalue from the boundary; negative: outside"), _MAYBE_INFINITE,
    ),
    RunField(
        "overflow_budget", float | None, -0.011,
        "Largest length x ln|eigenvalue|max / 88.72 so far, of DSS at the largest step size of a channel; float32 overflows at 1 "
        "(at 0.5 after an unbounded activation).",
        _RUN.overflow_budget, Filter("number"),
        Shown("Budget", "number", "share of float32's range that the state can reach; it overflows at 1"), _MAYBE_INFINITE,
    ),
    RunField(
        "unstable", dict[str, Any] | None, None,
        "Eigenvalues outside the boundary at the last step; null if there are none. Contains their number `eigenvalues`, "
        "the number `of` all eigenvalues, `worst_distance`, `overflow_budget`, and `overflows_at_length`, the length at which "
        "the state would overflow.",
        _RUN.unstable, Filter("flag", sql=_RUN.unstable.is_not(None), nullable=False),
        Shown("Outside", "own", "eigenvalues outside the stability boundary at the last step", sort=""),
        "{ eigenvalues: number; of: number; worst_distance: JsonNumber; overflow_budget: JsonNumber | null;"
        " overflows_at_length: number | null } | null",
    ),
    RunField(
        "unstable_start", bool, False,
        "True if its configuration places initial eigenvalues outside the stability boundary (a positive `real_start`).",
    ),
    RunField(
        "lost", bool, False,
        "True if the run ended without a usable result: it did not finish, or its last training loss or its last evaluation loss "
        "is NaN or infinite.",
        LOST, Filter("flag", nullable=False),
    ),
    RunField(
        "cause", str | None, None, "The cause that the verdict names once the run has ended; null if nothing went wrong.",
        _RUN.cause,
        Filter("text", values=CAUSES), Shown("Cause", "text", "the cause that the verdict names once the run has ended"),
    ),
    RunField(
        "forked_from", int | None, None, "The run whose checkpoint it started from.", _RUN.forked_from, Filter("number"),
        Shown("Fork of", "own", "the run whose checkpoint it started from"),
    ),
    RunField("forked_at_step", int | None, None, "The step of that checkpoint.", _RUN.forked_at_step, Filter("number")),
    RunField("fork_changes", dict[str, Any] | None, None, "What the fork changed, by dotted path.", _RUN.fork_changes),
    RunField(
        "hidden", bool, False, "True if lists leave it out unless they request hidden runs.", _RUN.hidden, Filter("flag")
    ),
    # the fields below are only in lists, not in the API's answers
    RunField(
        "duration", None,
        filter=Filter(
            "seconds", sql=func.coalesce(_RUN.finished_at, ago(0)) - _RUN.started_at, nullable=True,
            order=_RUN.finished_at - _RUN.started_at,
        ),
        column=Shown("Duration", "seconds", "from the first start to the end, or until now"),
    ),
    RunField(
        "curve", None,
        column=Shown("Curve", "own", "training loss over steps, logarithmic; × where it becomes NaN or infinite", sort="")
    ),
)  # fmt: skip
ANSWERED = tuple(field for field in FIELDS if field.type is not None)
EXAMPLE_RUN: dict[str, Any] = {field.name: field.example for field in ANSWERED}

# The order in which the names of filters are shown. Fields that are not listed here come last.
_FILTER_ORDER = (
    "id", "name", "notes", "kind", "project", "status", "tag", "hidden", "step", "sweep", "forked_from", "forked_at_step",
    "attempt", "queue",
    "priority", "gpu", "gpu_name", "host", "bytes_stored", "largest_ratio", "largest_relative_step", "nearest_distance",
    "overflow_budget", "created", "started", "finished",
)  # fmt: skip
COMPUTED = ("duration", "alerts", "submitted_by", "worker", "unstable", "lost", "cause")  # listed after the filters of the model

_filtered = {field.filter_name: field for field in FIELDS if field.filter}
FILTERED = {name: _filtered[name] for name in _FILTER_ORDER} | _filtered
