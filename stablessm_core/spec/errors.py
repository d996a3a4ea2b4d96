"""The error messages for a refused configuration: which field is wrong, why, and what is allowed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

from stablessm_core.maps import REFUSED as REFUSED_MAPS
from stablessm_core.spec.layers import LAYERS
from stablessm_core.spec.layers import REFUSED as REFUSED_LAYERS
from stablessm_core.spec.search import DISTRIBUTIONS
from stablessm_core.spec.suggestions import did_you_mean
from stablessm_core.spec.tasks import REFUSED as REFUSED_TASKS
from stablessm_core.spec.tasks import TASKS

Problem = tuple[str, str, str | None]  # dotted path of the field, message, allowed values (None if the message needs none)

LIMIT_SIGNS = {
    "ge": ">=",
    "gt": ">",
    "le": "<=",
    "lt": "<",
    "max_length": "length <=",
    "min_length": "length >=",
    "multiple_of": "multiple of",
    "pattern": "matches",
}


class ConfigError(ValueError):
    """Raised for a refused configuration. `problems` lists every problem; the exception's text is the first problem
    with what is allowed."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        field, message, allowed = problems[0]
        shown = f" (allowed: {allowed})" if allowed and allowed not in message else ""
        super().__init__((f"{field}: {message}" if field else message) + shown)


def describe_errors(error: ValidationError, model: Any) -> list[Problem]:
    """Every problem that pydantic found while it validated `model`."""
    return describe_items(error.errors(include_url=False), model)


def describe_items(items: Sequence[Mapping[str, Any]], model: Any) -> list[Problem]:
    """The problems in pydantic's list of error items. `model` is the validated type; messages list its field names.

    No problem contains the input as JSON, because a NaN in the input would make the HTTP response invalid.
    """
    return [_problem(item, model) for item in items]


def _problem(item: Mapping[str, Any], model: Any) -> Problem:
    kind, path, context = str(item["type"]), [str(part) for part in item["loc"]], item.get("ctx", {})
    if kind.startswith("union_tag"):
        if path[:2] == ["search", "space"]:
            return _unknown_distribution(path, context.get("tag"))
        return _unknown_task(context.get("tag")) if path[:1] == ["task"] else _unknown_layer(path, context)
    field = _without_branches(path)
    if "field" in context:
        field.append(str(context["field"]))
    allowed = _allowed(item, kind, context, model)
    return ".".join(field), _message(item, kind, field, allowed, model), allowed


def _message(item: Mapping[str, Any], kind: str, field: list[str], allowed: str | None, model: Any) -> str:
    given = item.get("input")
    if kind == "extra_forbidden":
        return f"there is no such field{_intended_field(field, allowed, model)}"
    if kind in ("not_allowed", "missing") or not isinstance(given, str | int | float | bool):
        return str(item["msg"])
    if kind == "literal_error" and allowed is not None:
        refused = REFUSED_MAPS.get(str(given)) if field[-2:] == ["reparameterization", "name"] else None
        guess = f"; it cannot be used here: {refused}" if refused else did_you_mean(given, allowed.split(", "))
        return f"{repr(given)[:100]} is unknown{guess}"
    if allowed is not None:  # the list of what is allowed says the rest
        return f"{repr(given)[:100]} is not allowed"
    return f"{item['msg']} (given: {repr(given)[:100]})"


def _intended_field(field: list[str], allowed: str | None, model: Any) -> str:
    """The field of the same section that was probably meant, or the section that has a field of this name."""
    name, here = field[-1], (allowed or "").split(", ")
    for section in here if len(field) == 1 else ():
        insides = [
            part for whole in _sections(model) if section in whole.model_fields for part in _sections(_type(whole, section))
        ]
        if any(name in inside.model_fields for inside in insides):
            return f"; did you mean {section}.{name}?"
    return did_you_mean(name, here)


def _allowed(item: Mapping[str, Any], kind: str, context: Mapping[str, Any], model: Any) -> str | None:
    allowed = context.get("allowed") or context.get("expected") or context.get("expected_tags")
    if kind == "extra_forbidden":
        allowed = _sibling_fields(item["loc"], model)
    if kind == "literal_error":
        allowed = ", ".join(re.findall(r"'([^']*)'", str(allowed))) or allowed
    if allowed is None:
        limits = [f"{LIMIT_SIGNS[name]} {limit}" for name, limit in context.items() if name in LIMIT_SIGNS]
        allowed = " and ".join(limits) or None
    return None if allowed is None else str(allowed)


def _unknown_task(name: str | None) -> Problem:
    allowed = ", ".join(TASKS)
    if name is None:
        return "task.name", "Field required", allowed
    why = f" ({REFUSED_TASKS[name]})" if name in REFUSED_TASKS else did_you_mean(name, TASKS)
    return "task.name", f"{name[:100]!r} is not installed here{why}", allowed


def _unknown_distribution(path: list[str], name: str | None) -> Problem:
    field, allowed = f"{'.'.join(path)}.distribution", ", ".join(DISTRIBUTIONS)
    if name is None:
        return field, "Field required", allowed
    return field, f"{str(name)[:100]!r} is unknown{did_you_mean(str(name), DISTRIBUTIONS)}", allowed


def _unknown_layer(path: list[str], context: Mapping[str, Any]) -> Problem:
    allowed, name = str(context.get("expected_tags", ", ".join(LAYERS))).replace("'", ""), context.get("tag")
    field = f"{'.'.join(_without_branches(path))}.name"
    if name is None:
        return field, "Field required", allowed
    if name in REFUSED_LAYERS:
        return field, f"{name[:100]!r} cannot be used here ({REFUSED_LAYERS[name]})", allowed
    return field, f"{name[:100]!r} is unknown{did_you_mean(name, allowed.split(', '))}", allowed


def _without_branches(path: list[str]) -> list[str]:
    """The path as in the user's JSON, without the names of the chosen task, layers and distributions that pydantic adds after
    their fields."""
    return [part for position, part in enumerate(path) if not _is_branch(path, position)]


def _is_branch(path: list[str], position: int) -> bool:
    part, before = path[position], path[:position]
    if before == ["task"]:
        return part in TASKS
    if before[:2] == ["search", "space"]:
        return position == 3 and part in DISTRIBUTIONS
    return part in LAYERS and (before[-1:] in (["layer"], ["inner"]) or before[-2:-1] == ["layers"])


def _sibling_fields(location: Sequence[int | str], model: Any) -> str | None:
    """The valid fields of the section that contains the unknown field `location[-1]`; None if the section is unknown."""
    sections = _sections(model)
    for key in map(str, location[:-1]):
        inside = [part for section in sections if key in section.model_fields for part in _sections(_type(section, key))]
        chosen: list[type[BaseModel]] = [section for section in sections if section in (TASKS.get(key), LAYERS.get(key))]
        sections = inside or chosen or sections
    return ", ".join(dict.fromkeys(name for section in sections for name in section.model_fields)) or None


def _type(section: type[BaseModel], field: str) -> Any:
    return section.model_fields[field].annotation


def _sections(annotation: Any) -> list[type[BaseModel]]:
    """The models that an annotation allows: the model itself, the items of a list, or the members of a union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Annotated, list):
        return _sections(get_args(annotation)[0])
    if get_origin(annotation) in (Union, UnionType):
        return [section for part in get_args(annotation) for section in _sections(part)]
    return []
