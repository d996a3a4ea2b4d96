"""The filter language of the run list: `reparam=best lr>=0.005 status=diverged`.

Terms are separated by spaces and all must hold. A term is `field op value` with one of = != < <= > >= ~ (contains, letter case
ignored), or a word, which the run's name must contain. Values with spaces go in double quotes. Fields are the names below, any
dotted path of the configuration (`optimizer.lr`), or `result.` and a name. User text only ever becomes bound parameters.
"""

from __future__ import annotations

import math
import re
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from pydantic import BaseModel
from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Float,
    Integer,
    String,
    and_,
    case,
    cast,
    collate,
    exists,
    func,
    literal,
    not_,
    null,
    or_,
    select,
)
from sqlalchemy.orm import InstrumentedAttribute

from server.database.models import Run
from server.series.forms import CONFIGURED_NAME
from stablessm_core.config import RunConfig
from stablessm_core.nonfinite import INFINITY, MINUS_INFINITY, NAN

Kind = Literal["number", "text", "flag", "tag", "map"]

MAP = "reparam"  # the maps of the run's layers
SHORT = {
    "time": "model.reparameterization.time",
    "layers": "model.n_layers",
    "d_model": "model.d_model",
    "d_state": "model.d_state",
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
    "step": ("number", Run.step),
    "sweep": ("number", Run.sweep_id),
    "attempt": ("number", Run.attempt),
    "queue": ("text", Run.queue),
    "priority": ("number", Run.priority),
    "gpu": ("text", Run.needs_gpu),
    "submitted_by": ("number", Run.submitted_by),
    "created": ("number", Run.created_at),
    "started": ("number", Run.started_at),
    "finished": ("number", Run.finished_at),
    "bytes_stored": ("number", Run.bytes_stored),
}
MAX_LENGTH, MAX_TERMS = 1000, 30
TERM = re.compile(r'([A-Za-z_][A-Za-z0-9_.]*)\s*(!=|<=|>=|=|<|>|~)\s*("(?:[^"\\]|\\.)*"|[^\s"]+)(?=\s|$)')
WORD = re.compile(r'("(?:[^"\\]|\\.)*"|[^\s"=<>~!]+)(?=\s|$)')
CompareOp = Callable[[Any, Any], Any]
OPERATORS: dict[str, CompareOp] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a.is_distinct_from(b),  # a field that is not there differs from every value
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


class FilterError(ValueError):
    """A filter that cannot be read: says which term, where, and what is allowed."""

    def __init__(self, message: str, allowed: str) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True)
class Field:
    """A field one can filter and sort by: its kind, and its SQL on the engine asked for."""

    name: str
    kind: Kind
    column: ColumnElement[Any]
    nullable: bool
    text: ColumnElement[Any] | None = None  # a result as it is stored, where NaN is a word

    def literal(self, value: Any) -> Any:
        """The value as a bound parameter that the engine compares with the column as it is (and can use its index for)."""
        if self.kind != "number":
            return literal(value)
        whole = isinstance(self.column.type, Integer) and float(value).is_integer() and abs(value) < 2**63
        return literal(int(value), BigInteger()) if whole else literal(float(value), Float(53))


def parse_filter(text: str, dialect: str) -> list[ColumnElement[bool]]:
    """Conditions of the filter, all to hold. Raises FilterError."""
    if len(text) > MAX_LENGTH:
        raise FilterError(f"q has {len(text)} characters", f"at most {MAX_LENGTH} characters")
    conditions: list[ColumnElement[bool]] = []
    position = 0
    while (position := _skip_spaces(text, position)) < len(text):
        where = f"q: term {len(conditions) + 1} at character {position + 1}"
        if len(conditions) == MAX_TERMS:
            raise FilterError(f"{where}: too many terms", f"at most {MAX_TERMS} terms")
        if match := TERM.match(text, position):
            name, operator, value = match[1], match[2], _unquote(match[3])
            try:
                conditions.append(_condition(field(name, dialect), operator, value, dialect))
            except FilterError as error:
                raise FilterError(f"{where}, {match[0]!r}: {error}", error.allowed) from None
        elif match := WORD.match(text, position):
            conditions.append(_contains(func.coalesce(Run.name, ""), _unquote(match[1])))
        else:
            given = text[position : position + 40]
            raise FilterError(f"{where}: cannot read {given!r}", 'field op value, with op one of = != < <= > >= ~, or "words"')
        position = match.end()
    return conditions


def field(name: str, dialect: str) -> Field:
    """The field of this name. Raises FilterError listing the names there are."""
    if name == MAP:
        return Field(name, "map", _ordered(_first_map(), dialect), True)
    if name in COLUMNS:
        kind, attribute = COLUMNS[name]
        column: Any = _ordered(attribute, dialect) if kind == "text" else attribute
        return Field(name, kind, column, bool(attribute.property.columns[0].nullable))
    path = SHORT.get(name, name)
    keys = tuple(path.split("."))
    if keys[0] == "result" and len(keys) > 1 and all(keys):
        stored: Any = Run.result[keys[1:]]
        return Field(name, "number", _number(stored, dialect), True, stored.as_string())
    known = config_fields().get(path)
    if known is None:
        raise FilterError(
            f"there is no field {name[:80]!r}", ", ".join([*COLUMNS, MAP, *SHORT, *config_fields(), "result.<name>"])
        )
    element: Any = Run.config[keys]
    if known == "number":
        return Field(name, known, _number(element, dialect), True)
    return Field(name, known, element.as_boolean() if known == "flag" else _ordered(element.as_string(), dialect), True)


@cache
def config_fields() -> dict[str, Kind]:
    """Dotted path of every number, text and flag of the run configuration."""
    found: dict[str, Kind] = {}

    def walk(annotation: Any, path: str) -> None:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            for name, info in annotation.model_fields.items():
                walk(info.annotation, f"{path}.{name}" if path else name)
        elif typing.get_origin(annotation) is typing.Annotated:
            walk(typing.get_args(annotation)[0], path)
        elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
            for part in typing.get_args(annotation):
                walk(part, path)
        elif typing.get_origin(annotation) is Literal or annotation is str:
            found[path] = "text"
        elif annotation in (int, float, bool):
            found[path] = "flag" if annotation is bool else "number"

    walk(RunConfig, "")
    found.pop("name")  # the run's own name can be changed later; the column has it
    return found


def _condition(target: Field, operator: str, value: str, dialect: str) -> ColumnElement[bool]:
    if target.kind == "tag":
        return _tag(target, operator, value, dialect)
    if target.kind == "map" and operator in ("=", "!=", "~") and value.lower() not in ("null", "none"):
        return _map(operator, value, dialect)
    if operator == "~":
        if target.kind != "text":
            raise FilterError(f"~ needs a text, {target.name} is a {target.kind}", "= != < <= > >=")
        return _contains(func.coalesce(target.column, ""), value)
    if value.lower() in ("null", "none") and operator in ("=", "!="):
        empty: ColumnElement[bool] = (target.column if target.text is None else target.text).is_(None)
        return empty if operator == "=" else not_(empty)
    if target.kind == "flag":
        if value.lower() not in ("true", "false") or operator not in ("=", "!="):
            raise FilterError(f"{target.name} is true or false", "=true, =false, !=true, !=false")
        return typing.cast(ColumnElement[bool], OPERATORS[operator](target.column, value.lower() == "true"))
    if target.kind in ("text", "map"):
        return typing.cast(ColumnElement[bool], OPERATORS[operator](target.column, value))
    return _compare_number(target, operator, value)


def _compare_number(target: Field, operator: str, value: str) -> ColumnElement[bool]:
    try:
        number = float(value)
    except ValueError:
        raise FilterError(f"{value[:40]!r} is not a number", "a number, nan, inf, -inf or null") from None
    if math.isnan(number):
        if operator not in ("=", "!="):
            raise FilterError(f"nothing is {operator} NaN", "=nan, !=nan")
        stored = target.text if target.text is not None else cast(target.column, String)
        return typing.cast(ColumnElement[bool], OPERATORS[operator](stored, NAN))
    return typing.cast(ColumnElement[bool], OPERATORS[operator](target.column, target.literal(number)))


def _tag(target: Field, operator: str, value: str, dialect: str) -> ColumnElement[bool]:
    if operator not in ("=", "!=", "~"):
        raise FilterError(f"a tag is not {operator} anything", "= != ~")
    elements = func.jsonb_array_elements_text if dialect == "postgresql" else func.json_each
    tags = elements(target.column).table_valued("value", joins_implicitly=True)
    matching = _contains(tags.c.value, value) if operator == "~" else tags.c.value == value
    found = exists(select(literal(1)).select_from(tags).where(matching))
    return not_(found) if operator == "!=" else found


def _map(operator: str, value: str, dialect: str) -> ColumnElement[bool]:
    """Whether any layer of the run has the map; for several layers with several maps the first is not enough."""
    if dialect == "postgresql":
        forms = func.jsonb_array_elements(Run.forms).table_valued("value", joins_implicitly=True)
        other: Any = forms.c.value.op("->>")("map")
    else:
        forms = func.json_each(Run.forms).table_valued("value", joins_implicitly=True)
        other = func.json_extract(forms.c.value, "$.map")

    def matching(name: Any) -> Any:
        return _contains(name, value) if operator == "~" else name == value

    several = and_(
        func.coalesce(_number_of_forms(dialect), 0) > 1, exists(select(literal(1)).select_from(forms).where(matching(other)))
    )
    found = or_(matching(func.coalesce(_first_map(), "")), several)
    return not_(found) if operator == "!=" else found


def _first_map() -> Any:
    return case((Run.forms.is_(None), CONFIGURED_NAME), else_=Run.forms[(0, "map")].as_string())


def _number_of_forms(dialect: str) -> Any:
    return (func.jsonb_array_length if dialect == "postgresql" else func.json_array_length)(Run.forms)


def _contains(column: ColumnElement[Any], value: str) -> ColumnElement[bool]:
    return func.lower(column).contains(value.lower(), autoescape=True)


def _number(element: Any, dialect: str) -> ColumnElement[Any]:
    """A JSON element as a number: infinities from their words, NULL for NaN and for what is not there."""
    text = element.as_string()
    kind = func.jsonb_typeof(element) if dialect == "postgresql" else func.json_type(element)
    return case(
        (kind.in_(["number", "integer", "real"]), element.as_float()),
        (text == INFINITY, literal(math.inf, Float(53))),
        (text == MINUS_INFINITY, literal(-math.inf, Float(53))),
        else_=null(),
    )


def _ordered(column: Any, dialect: str) -> ColumnElement[Any]:
    """Text that sorts by code points on both engines."""
    return collate(column, "C") if dialect == "postgresql" else column


def _skip_spaces(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _unquote(text: str) -> str:
    plain = re.sub(r"\\(.)", r"\1", text[1:-1]) if text.startswith('"') else text
    if any(ord(c) < 32 or 0xD800 <= ord(c) <= 0xDFFF for c in plain):
        raise FilterError("control characters are not allowed in q", "printable text")
    return plain
