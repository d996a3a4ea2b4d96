"""The fields by which runs are filtered and sorted: their names, kinds, possible values, and SQL for both engines."""

from __future__ import annotations

import math
import types
import typing
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import BigInteger, ColumnElement, Float, Integer, case, collate, func, literal, literal_column, null

from server.database.models import Run
from server.lifecycle.run_fields import COMPUTED, FILTERED
from server.lifecycle.run_fields import FilterKind as Kind
from server.search.filter_syntax import FilterError
from server.series.forms import CONFIGURED_NAME
from server.series.last_values import newest_number, newest_value
from stablessm_core.maps import MAPS
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.model import NATIVE
from stablessm_core.spec.suggestions import did_you_mean, listed
from stablessm_core.telemetry.metrics import name_error
from stablessm_core.telemetry.nonfinite import INFINITY, MINUS_INFINITY
from stablessm_core.telemetry.series import RESULTS

NUMBERS = ("number", "time", "seconds", "alerts")

MAP, MAP_TITLE = "reparam", "map"  # the maps of the run's layers; filters accept both names, the second is the column's title
METRIC = "metric."  # prefix of a metric whose name has no slash
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


@dataclass(frozen=True)
class Field:
    """A field to filter and sort by, with its SQL for one engine."""

    name: str
    kind: Kind
    column: ColumnElement[Any]
    nullable: bool
    text: ColumnElement[Any] | None = None  # the stored result as text, in which NaN is a word
    values: tuple[str, ...] = ()  # all possible values, if they are few
    order: ColumnElement[Any] | None = None  # the expression to sort by, if the column changes with time

    @property
    def is_number(self) -> bool:
        return self.kind in NUMBERS

    def literal(self, value: Any) -> Any:
        """The value as a bound parameter of the column's type, so that the engine can use the column's index."""
        if not self.is_number:
            return literal(value)
        whole = isinstance(self.column.type, Integer) and float(value).is_integer() and abs(value) < 2**63
        return literal(int(value), BigInteger()) if whole else literal(float(value), Float(53))


def field(name: str, dialect: str) -> Field:
    """The field with this name. Raises FilterError with a list of the known names."""
    if name in (MAP, MAP_TITLE):
        return Field(name, "map", ordered(first_map(), dialect), True, values=(*MAPS, "fixed", "gate"))
    if name in (LAYER, LAYER_PATH):
        return Field(name, "layer", ordered(first_layer(), dialect), True, values=tuple(LAYERS))
    if name == STATES:
        return Field(name, "number", _states(dialect), True)
    if (metric := metric_name(name)) is not None:
        return metric_field(metric, dialect)
    if (known := FILTERED.get(name)) is not None and (found := known.filter) is not None:
        column: Any = known.sql if found.sql is None else found.sql
        nullable = column.nullable if found.nullable is None else found.nullable
        if found.kind in ("text", "submitter"):
            column = ordered(column, dialect)
        return Field(name, found.kind, column, nullable, values=found.values, order=found.order)
    path = SHORT.get(name, name)
    if path.removeprefix("result.") in RESULTS and path.startswith("result."):
        stored: Any = Run.result[path.removeprefix("result.")]
        return Field(name, "number", number(stored, dialect), True, stored.as_string())
    if path not in config_fields():
        raise _unknown(name)
    kind, possible = config_fields()[path]
    keys = tuple(int(key) if key.isdigit() else key for key in path.split("."))
    element: Any = Run.config[keys]
    if kind == "number":
        return Field(name, kind, number(element, dialect), True)
    column = element.as_boolean() if kind == "flag" else ordered(element.as_string(), dialect)
    return Field(name, kind, column, True, values=possible)


def metric_name(name: str) -> str | None:
    """The name of the scalar that a field or column means: "train/loss", or "metric.loss" for a scalar without a slash; None for
    every other field."""
    if name.startswith(METRIC):
        return name.removeprefix(METRIC)
    return name if "/" in name else None


def metric_field(name: str, dialect: str) -> Field:
    """The newest value of the scalar with this name. Raises FilterError for a name that no scalar can have."""
    if allowed := name_error(name):
        raise FilterError(f"{name[:80]!r} is not the name of a metric", allowed)
    text = newest_value(name, dialect)
    return Field(name, "number", newest_number(text, dialect), True, text)


@cache
def all_names() -> tuple[str, ...]:
    plain = (name for name in FILTERED if name not in COMPUTED)
    return (*plain, MAP_TITLE, MAP, LAYER, STATES, *COMPUTED, *SHORT, *config_fields(), *(f"result.{name}" for name in RESULTS))


@cache
def config_fields() -> dict[str, tuple[Kind, tuple[str, ...]]]:
    """Every number, text and flag of the run configuration by dotted path, with its kind and, if there are only a few possible
    values, these values."""
    found: dict[str, tuple[Kind, tuple[str, ...]]] = {}

    def add(path: str, kind: Kind, values: tuple[str, ...] = ()) -> None:
        # several tasks may have a field of this name; the values of all these fields are then possible
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
            for index, part in enumerate(parts):
                walk(part, f"{path}.{index}")
        elif origin is Literal and all(isinstance(part, str) for part in parts):
            add(path, "text", parts)
        elif origin is Literal and all(type(part) is int for part in parts):
            add(path, "number")
        elif annotation is str:
            add(path, "text")
        elif annotation in (int, float, bool):
            add(path, "flag" if annotation is bool else "number")

    walk(RunConfig, "")
    found.pop("name")  # the name of a run can change later; the column `name` contains the current name
    return found


def first_map() -> Any:
    return case((Run.forms.is_(None), func.nullif(CONFIGURED_NAME, NATIVE)), else_=Run.forms[(0, "map")].as_string())


def first_layer() -> Any:
    """The name of the run's first layer, from `model.layers` if it lists layers, else from `model.layer`. Each layer is a name or
    a section. NULL for a reported run, whose layers are not ours."""
    paths: tuple[tuple[str | int, ...], ...] = (("model", "layers", 0), ("model", "layer"))
    names = [Run.config[(*path, *more)].as_string() for path in paths for more in (("name",), ())]
    return case((Run.kind == literal_column("'reported'"), null()), else_=func.coalesce(*names, "stable_ssm"))


def _states(dialect: str) -> Any:
    """SQL for d_state, which is an option of the run's first layer or, for stable_ssm, a field of `model`."""
    own = [number(Run.config[(*path, "d_state")], dialect) for path in (("model", "layers", 0), ("model", "layer"))]
    of_model = number(Run.config[("model", "d_state")], dialect)
    return func.coalesce(*own, case((first_layer() == "stable_ssm", of_model), else_=null()))


def number(element: Any, dialect: str) -> ColumnElement[Any]:
    """A JSON element as a number. Infinities are stored as words; NaN and missing values become NULL."""
    text = element.as_string()
    kind = func.jsonb_typeof(element) if dialect == "postgresql" else func.json_type(element)
    return case(
        (kind.in_(["number", "integer", "real"]), element.as_float()),
        (text == INFINITY, literal(math.inf, Float(53))),
        (text == MINUS_INFINITY, literal(-math.inf, Float(53))),
        else_=null(),
    )


def ordered(column: Any, dialect: str) -> ColumnElement[Any]:
    """A text column that sorts by code points on both engines."""
    return collate(column, "C") if dialect == "postgresql" else column


def _unknown(name: str) -> FilterError:
    inside = [known for known in all_names() if known.startswith(f"{name}.")]
    if inside:
        return FilterError(f"{name[:80]!r} is a section", listed(inside))
    beside = [known for known in all_names() if "." in name and known.startswith(f"{name.rpartition('.')[0]}.")]
    return FilterError(
        f"there is no field {name[:80]!r}{did_you_mean(name, beside or all_names())}", listed(beside) or _some_names()
    )


@cache
def _some_names() -> str:
    """The fields that are searched most often, for error messages."""
    often = ("name", "status", MAP_TITLE, LAYER, "task", "lr", "seed", "loss", "tag", "alerts", "created", "submitted_by")
    return f"{', '.join(often)}, and {len(all_names()) - len(often)} more (GET /api/fields lists them)"
