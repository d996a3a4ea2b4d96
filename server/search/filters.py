"""The filter language of the run list: `map=best lr>=0.005 (status=diverged OR loss>10) NOT tag=old`.

filter_syntax.py parses the text, filter_fields.py defines the fields, filter_values.py reads times and numbers, and this file
turns a filter into SQL conditions. Text from users is passed only as bound parameters. If a run lacks a value (such as a loss
before the first step), every comparison with this value is false, and the NOT of the comparison is true. So every run matches
either a filter or the NOT of this filter.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from sqlalchemy import ColumnElement, String, and_, case, cast, exists, false, func, literal, literal_column, not_, or_, select
from sqlalchemy.dialects.postgresql import JSONB

from server.database.models import AlertRow, Run
from server.lifecycle.run_fields import ago
from server.search.filter_fields import Field, all_names, field, first_layer, first_map, metric_field, ordered
from server.search.filter_syntax import OPERATORS, FilterError, Group, Node, Not, Term, Text, Word, parse
from server.search.filter_values import NUMBER, Span, number_of, seconds_of, span_of
from server.search.reported_settings import is_setting, setting_sql
from stablessm_core.spec.suggestions import did_you_mean, listed
from stablessm_core.telemetry.nonfinite import NAN

Condition = ColumnElement[bool]
CompareOp = Callable[[Any, Any], Any]
COMPARE: dict[str, CompareOp] = {
    "=": lambda a, b: a == b,
    "!=": lambda a, b: a.is_distinct_from(b),  # a missing value differs from every value
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
ME = "me"


def parse_filter(text: str, dialect: str, me: Condition | None = None) -> list[Condition]:
    """The conditions of the filter, which must all hold. me: the condition that a run belongs to the requesting user.

    Raises FilterError.
    """
    tree = parse(text)
    if tree is None:
        return []
    parts = tree.parts if isinstance(tree, Group) and tree.how == "and" else (tree,)
    return [_condition(part, dialect, me) for part in parts]


def mentions(text: str, name: str) -> bool:
    """True if the filter uses this field. Raises FilterError."""

    def uses(node: Node | None) -> bool:
        match node:
            case Term(field_name, _, _):
                return field_name.text == name
            case Not(part):
                return uses(part)
            case Group(_, parts):
                return any(uses(part) for part in parts)
        return False

    return name in text and uses(parse(text))


def has_tag(tag: str, dialect: str) -> Condition:
    """The condition that a run has this tag. Raises FilterError."""
    try:
        Text(tag).check()
    except FilterError as error:
        raise FilterError(error.message, error.allowed, parameter="tag") from None
    return _tag(field("tag", dialect), "=", Text(tag), dialect)


def _condition(node: Node, dialect: str, me: Condition | None) -> Condition:
    match node:
        case Word(text):
            return _word(text)
        case Not(part):
            return not_(func.coalesce(_condition(part, dialect, me), false()))
        case Group(how, parts):
            conditions = [_condition(part, dialect, me) for part in parts]
            return or_(*conditions) if how == "or" else and_(*conditions)
        case Term(name, "in", values):
            return or_(*(_term(name, "=", value, dialect, me) for value in values))
        case Term(name, operator, values):
            return _term(name, operator, values[0], dialect, me)


def _word(text: Text) -> Condition:
    if not text.quoted and text.text in all_names():
        after = replace(text, position=text.position + text.length, length=1)
        raise after.refused(
            f"an operator is expected after the field {text.text}",
            f"{' '.join(OPERATORS)} IN NOT IN, or quotes around it to search for it in names",
        )
    return _contains(func.coalesce(Run.name, ""), text.text)


def _term(name: Text, operator: str, value: Text, dialect: str, me: Condition | None) -> Condition:
    if is_setting(name.text):
        return _setting(name.text, operator, value, dialect)
    try:
        target = metric_field(name.text, dialect) if name.quoted else field(name.text, dialect)
    except FilterError as error:
        raise name.refused(error.message, error.allowed) from None
    if not value.quoted and value.text.lower() in ("null", "none") and target.kind not in ("tag", "alerts"):
        return _empty(target, operator, value)
    if target.kind == "tag":
        return _tag(target, operator, value, dialect)
    if target.kind == "alerts":
        return _alerts(target, operator, value)
    if target.kind == "submitter" and value.text == ME and not value.quoted:
        return _me(operator, value, me)
    if target.kind == "flag":
        if value.text.lower() not in ("true", "false") or operator not in ("=", "!="):
            raise value.refused(f"{target.name} is true or false", "=true, =false, !=true, !=false")
        return _compared(operator, target.column, value.text.lower() == "true")
    if target.is_number:
        return _number(target, operator, value)
    if operator in ("=", "!="):
        _check_possible(target, value)
    if target.kind == "map" and operator in ("=", "!=", "~"):
        return _map(operator, value.text, dialect)
    if target.kind == "layer" and operator in ("=", "!=", "~"):
        return _layer(operator, value.text, dialect)
    if operator == "~":
        return _contains(func.coalesce(target.column, ""), value.text)
    return _compared(operator, target.column, value.text)


def _setting(name: str, operator: str, value: Text, dialect: str) -> Condition:
    """The condition on a value of the free configuration, which may be a number in one run and a text in another."""
    text, as_number = setting_sql(name, dialect)
    target = Field(name, "number", as_number, True, text)
    if not value.quoted and value.text.lower() in ("null", "none"):
        return _empty(target, operator, value)
    if operator == "~":
        return _contains(func.coalesce(text, ""), value.text)
    if value.quoted or not NUMBER.fullmatch(value.text):
        return _compared(operator, ordered(text, dialect), value.text)
    of_number = _number(target, operator, value)
    if operator not in ("=", "!="):
        return of_number
    same = _compared(operator, text, value.text)
    return or_(of_number, same) if operator == "=" else and_(of_number, same)


def _check_possible(target: Field, value: Text) -> None:
    if target.values and value.text not in target.values:
        guess = did_you_mean(value.text, target.values)
        raise value.refused(f"{target.name} is never {value.text[:40]!r}{guess}", listed(target.values))


def _empty(target: Field, operator: str, value: Text) -> Condition:
    if operator not in ("=", "!="):
        raise value.refused(f"null cannot be compared with {operator}", "=null, !=null")
    empty: Condition = (target.column if target.text is None else target.text).is_(None)
    return empty if operator == "=" else not_(empty)


def _number(target: Field, operator: str, value: Text) -> Condition:
    if operator == "~":
        raise value.refused(f"~ needs a text, but {target.name} is a number", "= != < <= > >=")
    if target.kind == "time":
        return _time(target, operator, value, span_of(value))
    if target.kind == "seconds":
        return _compared(operator, target.column, target.literal(seconds_of(value)))
    given = number_of(value)
    if math.isnan(given):
        if operator not in ("=", "!="):
            raise value.refused(f"NaN cannot be compared with {operator}", "=nan, !=nan")
        return _compared(operator, target.text if target.text is not None else cast(target.column, String), NAN)
    return _compared(operator, target.column, target.literal(given))


def _time(target: Field, operator: str, value: Text, span: Span) -> Condition:
    """Compare a time. For a day, `>` means after its end and `<` before its start. For an age, `<` means younger and `>`
    older."""
    column = target.column
    if span.age is not None:
        back = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}
        if operator not in back:
            raise value.refused(f"an age cannot be compared with {operator}", "< (within), > (longer ago), <=, >=")
        return _compared(back[operator], column, ago(span.age))
    low, high = target.literal(span.low), target.literal(span.high)
    if span.low == span.high:
        return _compared(operator, column, low)
    within = and_(column >= low, column < high)
    by_operator: dict[str, Condition] = {
        "=": within,
        "!=": not_(func.coalesce(within, false())),
        "<": column < low,
        "<=": column < high,
        ">": column >= high,
        ">=": column >= low,
    }
    return by_operator[operator]


def _alerts(target: Field, operator: str, value: Text) -> Condition:
    """The condition on a run's alerts. A number is compared with the number of alerts. A kind matches runs with an alert of
    this kind."""
    if NUMBER.fullmatch(value.text) and not value.quoted:
        return _number(target, operator, value)
    if operator not in ("=", "!=", "~"):
        raise value.refused(f"{value.text[:40]!r} is not a number of alerts", "a number; or = != ~ and a kind of alert")
    if operator != "~":
        _check_possible(target, value)
    matching = _contains(AlertRow.kind, value.text) if operator == "~" else AlertRow.kind == value.text
    found = exists(select(literal(1)).where(AlertRow.run_id == Run.id, matching).correlate(Run))
    return not_(found) if operator == "!=" else found


def _me(operator: str, value: Text, me: Condition | None) -> Condition:
    if operator not in ("=", "!="):
        raise value.refused(f"me cannot be compared with {operator}", "=me, !=me")
    if me is None:
        raise value.refused("nobody is signed in here", "a name")
    return me if operator == "=" else not_(func.coalesce(me, false()))


def _tag(target: Field, operator: str, value: Text, dialect: str) -> Condition:
    if operator not in ("=", "!=", "~"):
        raise value.refused(f"a tag cannot be compared with {operator}", "= != ~")
    elements = func.jsonb_array_elements_text if dialect == "postgresql" else func.json_each
    tags = elements(target.column).table_valued("value", joins_implicitly=True)
    matching = _contains(tags.c.value, value.text) if operator == "~" else tags.c.value == value.text
    found = exists(select(literal(1)).select_from(tags).where(matching))
    return not_(found) if operator == "!=" else found


def _map(operator: str, value: str, dialect: str) -> Condition:
    """The condition that any layer of the run has this map; a run may have several layers with different maps."""
    if dialect == "postgresql":
        forms = func.jsonb_array_elements(Run.forms).table_valued("value", joins_implicitly=True)
        other: Any = forms.c.value.op("->>")("map")
    else:
        forms = func.json_each(Run.forms).table_valued("value", joins_implicitly=True)
        other = func.json_extract(forms.c.value, "$.map")
    count = (func.jsonb_array_length if dialect == "postgresql" else func.json_array_length)(Run.forms)
    listed = select(literal(1)).select_from(forms)
    return _any(operator, value, first_map(), listed, other, several=func.coalesce(count, 0) > 1)


def _layer(operator: str, value: str, dialect: str) -> Condition:
    """The condition that any layer of the run has this name; `model.layers` may list several layers."""
    if dialect == "postgresql":
        sections = Run.config[("model", "layers")]
        kind: Any = func.jsonb_typeof(sections)
        layers = func.jsonb_array_elements(case((kind == "array", sections), else_=cast([], JSONB)))
        listed = layers.table_valued("value", joins_implicitly=True)
        name: Any = func.coalesce(listed.c.value.op("->>")("name"), listed.c.value.op("#>>")(literal_column("'{}'::text[]")))
    else:
        kind = func.json_type(Run.config, "$.model.layers")
        listed = func.json_each(Run.config, "$.model.layers").table_valued("value", "type", joins_implicitly=True)
        name = case((listed.c.type == "object", func.json_extract(listed.c.value, "$.name")), else_=listed.c.value)
    several = func.coalesce(kind, "") == "array"
    return _any(operator, value, first_layer(), select(literal(1)).select_from(listed), name, several=several)


def _any(operator: str, value: str, first: Any, listed: Any, name: Any, *, several: Any) -> Condition:
    """The condition that the first item has this name or, if there are several items, that any listed item has this name."""

    def matching(of: Any) -> Any:
        return _contains(of, value) if operator == "~" else of == value

    found = or_(matching(func.coalesce(first, "")), and_(several, exists(listed.where(matching(name)))))
    return not_(found) if operator == "!=" else found


def _compared(operator: str, column: Any, value: Any) -> Condition:
    return typing.cast(Condition, COMPARE[operator](column, value))


def _contains(column: Any, value: str) -> Condition:
    return func.lower(column).contains(value.lower(), autoescape=True)
