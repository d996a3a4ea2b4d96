"""The fields by which runs are filtered and sorted: names, kinds, the values they can have, and their SQL on either engine."""

from __future__ import annotations

import difflib
import math
import time
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import BigInteger, ColumnElement, Float, Integer, bindparam, case, collate, func, literal, null, select
from sqlalchemy.orm import InstrumentedAttribute

from server.database.models import STATUSES, AlertRow, Run
from server.runs.filter_syntax import FilterError
from server.runs.submitters import SUBMITTER
from server.series.forms import CONFIGURED_NAME
from stablessm_core.config import NATIVE, RunConfig
from stablessm_core.layers.registry import LAYERS
from stablessm_core.maps import MAPS
from stablessm_core.nonfinite import INFINITY, MINUS_INFINITY
from stablessm_core.telemetry.detectors import KINDS
from stablessm_core.telemetry.series import RESULTS
from stablessm_core.verdict import CAUSES

Kind = Literal["number", "text", "flag", "time", "seconds", "tag", "map", "layer", "alerts", "submitter"]
NUMBERS = ("number", "time", "seconds", "alerts")

MAP = "reparam"  # the maps of the run's layers
LAYER, LAYER_PATH, STATES = "layer", "model.layer", "d_state"
SHORT = {
    "time": "model.reparameterization.time",
    "layers": "model.n_layers",
    "d_model": "model.d_model",
    "task": "task.name",
    "lr": "optimizer.lr",
    "steps": "train.steps",
    "batch_size": "train.batch_size",
    "seed": "train.seed",
    "device": "train.device",
    "loss": "result.train_loss",
    "eval_loss": "result.eval_loss",
    "accuracy": "result.eval_accuracy",
}
COLUMNS: dict[str, tuple[Kind, InstrumentedAttribute[Any]]] = {
    "id": ("number", Run.id),
    "name": ("text", Run.name),
    "notes": ("text", Run.notes),
    "status": ("text", Run.status),
    "tag": ("tag", Run.tags),
    "hidden": ("flag", Run.hidden),
    "step": ("number", Run.step),
    "sweep": ("number", Run.sweep_id),
    "forked_from": ("number", Run.forked_from),
    "forked_at_step": ("number", Run.forked_at_step),
    "attempt": ("number", Run.attempt),
    "queue": ("text", Run.queue),
    "priority": ("number", Run.priority),
    "gpu": ("text", Run.needs_gpu),
    "gpu_name": ("text", Run.gpu_name),
    "host": ("text", Run.host),
    "bytes_stored": ("number", Run.bytes_stored),
    # what the run's numbers say, over all layers, eigenvalues and steps so far
    "largest_ratio": ("number", Run.largest_ratio),
    "largest_relative_step": ("number", Run.largest_relative_step),
    "nearest_distance": ("number", Run.nearest_distance),
    "overflow_budget": ("number", Run.overflow_budget),
    "created": ("time", Run.created_at),
    "started": ("time", Run.started_at),
    "finished": ("time", Run.finished_at),
}
COMPUTED = ("duration", "alerts", "submitted_by", "worker", "unstable", "cause")
ALERTS: Any = select(func.count()).where(AlertRow.run_id == Run.id).correlate(Run).scalar_subquery()


@dataclass(frozen=True)
class Field:
    """A field one can filter and sort by: its kind, and its SQL on the engine asked for."""

    name: str
    kind: Kind
    column: ColumnElement[Any]
    nullable: bool
    text: ColumnElement[Any] | None = None  # a result as it is stored, where NaN is a word
    values: tuple[str, ...] = ()  # all that it can be, where these are few
    order: ColumnElement[Any] | None = None  # what runs are sorted by, where that is not the column: it must stand still

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS

    def literal(self, value: Any) -> Any:
        """The value as a bound parameter that the engine compares with the column as it is (and can use its index for)."""
        if not self.is_number:
            return literal(value)
        whole = isinstance(self.column.type, Integer) and float(value).is_integer() and abs(value) < 2**63
        return literal(int(value), BigInteger()) if whole else literal(float(value), Float(53))


def field(name: str, dialect: str) -> Field:
    """The field of this name. Raises FilterError listing the names there are."""
    if name == MAP:
        return Field(name, "map", ordered(first_map(), dialect), True, values=(*MAPS, "fixed", "gate"))
    if name in (LAYER, LAYER_PATH):
        return Field(name, "layer", ordered(first_layer(), dialect), False, values=tuple(LAYERS))
    if name == STATES:
        return Field(name, "number", _states(dialect), True)
    if name == "alerts":
        return Field(name, "alerts", ALERTS, False, values=tuple(KINDS))
    if name == "unstable":  # it ended, or stands, with eigenvalues outside the boundary
        return Field(name, "flag", Run.unstable.is_not(None), False)
    if name == "cause":
        return Field(name, "text", ordered(Run.cause, dialect), True, values=CAUSES)
    if name == "worker":
        return Field(name, "text", ordered(func.coalesce(Run.owner, Run.worker), dialect), True)
    if name == "submitted_by":
        return Field(name, "submitter", ordered(SUBMITTER, dialect), False)
    if name == "duration":
        ended = Run.finished_at - Run.started_at
        return Field(name, "seconds", func.coalesce(Run.finished_at, ago(0)) - Run.started_at, True, order=ended)
    if name in COLUMNS:
        kind, attribute = COLUMNS[name]
        column: Any = ordered(attribute, dialect) if kind == "text" else attribute
        values: tuple[str, ...] = STATUSES if name == "status" else ()
        return Field(name, kind, column, bool(attribute.property.columns[0].nullable), values=values)
    path = SHORT.get(name, name)
    if path.removeprefix("result.") in RESULTS and path.startswith("result."):
        stored: Any = Run.result[path.removeprefix("result.")]
        return Field(name, "number", number(stored, dialect), True, stored.as_string())
    if path not in config_fields():
        raise _unknown(name)
    known, possible = config_fields()[path]
    keys = tuple(int(key) if key.isdigit() else key for key in path.split("."))
    element: Any = Run.config[keys]
    if known == "number":
        return Field(name, known, number(element, dialect), True)
    column = element.as_boolean() if known == "flag" else ordered(element.as_string(), dialect)
    return Field(name, known, column, True, values=possible)


@cache
def all_names() -> tuple[str, ...]:
    return (*COLUMNS, MAP, LAYER, STATES, *COMPUTED, *SHORT, *config_fields(), *(f"result.{name}" for name in RESULTS))


@cache
def config_fields() -> dict[str, tuple[Kind, tuple[str, ...]]]:
    """Dotted path of every number, text and flag of the run configuration, with the texts that it can be where these are few."""
    found: dict[str, tuple[Kind, tuple[str, ...]]] = {}

    def add(path: str, kind: Kind, values: tuple[str, ...] = ()) -> None:
        # tasks may share a name: then everything that one of them takes is possible
        known, few = found.get(path, (kind, values))
        if known != kind or bool(few) != bool(values):
            few = values = ()
        found[path] = kind, tuple(dict.fromkeys((*few, *values)))

    def walk(annotation: Any, path: str) -> None:
        origin, parts = typing.get_origin(annotation), typing.get_args(annotation)
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for name, info in annotation.model_fields.items():
                walk(info.annotation, f"{path}.{name}" if path else name)
        elif origin is typing.Annotated:
            walk(parts[0], path)
        elif origin in (typing.Union, types.UnionType):
            for part in parts:
                walk(part, path)
        elif origin is tuple and Ellipsis not in parts:
            for place, part in enumerate(parts):
                walk(part, f"{path}.{place}")
        elif origin is Literal and all(isinstance(part, str) for part in parts):
            add(path, "text", parts)
        elif annotation is str:
            add(path, "text")
        elif annotation in (int, float, bool):
            add(path, "flag" if annotation is bool else "number")

    walk(RunConfig, "")
    found.pop("name")  # the run's own name can be changed later; the column has it
    return found


def ago(seconds: float) -> ColumnElement[float]:
    """The moment this long before the statement is executed: statements are kept and executed again."""
    return bindparam(None, unique=True, callable_=lambda: time.time() - seconds, type_=Float(53))


def first_map() -> Any:
    return case((Run.forms.is_(None), func.nullif(CONFIGURED_NAME, NATIVE)), else_=Run.forms[(0, "map")].as_string())


def first_layer() -> Any:
    """Name of the run's first layer: of `model.layers` where these are listed, else `model.layer`; both a name or a section."""
    places: tuple[tuple[str | int, ...], ...] = (("model", "layers", 0), ("model", "layer"))
    names = [Run.config[(*place, *more)].as_string() for place in places for more in (("name",), ())]
    return func.coalesce(*names, "stable_ssm")


def _states(dialect: str) -> Any:
    """The option d_state of the run's first layer; of stable_ssm it stands in `model` itself."""
    own = [number(Run.config[(*place, "d_state")], dialect) for place in (("model", "layers", 0), ("model", "layer"))]
    of_model = number(Run.config[("model", "d_state")], dialect)
    return func.coalesce(*own, case((first_layer() == "stable_ssm", of_model), else_=null()))


def number(element: Any, dialect: str) -> ColumnElement[Any]:
    """A JSON element as a number: infinities from their words, NULL for NaN and for what is not there."""
    text = element.as_string()
    kind = func.jsonb_typeof(element) if dialect == "postgresql" else func.json_type(element)
    return case(
        (kind.in_(["number", "integer", "real"]), element.as_float()),
        (text == INFINITY, literal(math.inf, Float(53))),
        (text == MINUS_INFINITY, literal(-math.inf, Float(53))),
        else_=null(),
    )


def ordered(column: Any, dialect: str) -> ColumnElement[Any]:
    """Text that sorts by code points on both engines."""
    return collate(column, "C") if dialect == "postgresql" else column


def _unknown(name: str) -> FilterError:
    inside = [known for known in all_names() if known.startswith(f"{name}.")]
    if inside:
        return FilterError(f"{name[:80]!r} is a section", ", ".join(inside))
    alike = difflib.get_close_matches(name, all_names(), 1)
    guess = f"; did you mean {alike[0]}?" if alike else ""
    return FilterError(f"there is no field {name[:80]!r}{guess}", ", ".join(all_names()))
