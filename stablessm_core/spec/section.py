"""Helpers for all sections of the run configuration: strict models, clean text, and errors that state what is allowed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

from stablessm_core.plugins import NAME_PATTERN

# Each file has only one valid spelling, without "..", "//" or hidden files, so that paths can be compared as text.
FILE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$"


class Section(BaseModel):
    """A strict model: no coercion from strings, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


SectionType = TypeVar("SectionType", bound=Section)


def name_of(section: type[Section]) -> str:
    """The single name that the section's `name` allows. Raises ValueError unless it allows exactly one valid name."""
    field = section.model_fields.get("name")
    names = get_args(field.annotation) if field is not None and get_origin(field.annotation) is Literal else ()
    if len(names) != 1 or not isinstance(names[0], str) or not re.fullmatch(NAME_PATTERN, names[0]):
        raise ValueError(f'{section.__name__}.name must be Literal["..."] with one name of the form {NAME_PATTERN}')
    return names[0]


def sections_in(package: str, base: type[SectionType]) -> Iterator[type[SectionType]]:
    """The sections in a package: each module defines one subclass of `base`."""
    for module in iter_modules(import_module(package).__path__):
        content = vars(import_module(f"{package}.{module.name}"))
        (section,) = (
            value
            for value in content.values()
            if isinstance(value, type) and issubclass(value, base) and value.__module__ == content["__name__"]
        )
        yield section


def section_check(base: type[SectionType], target: str) -> Callable[[str, object], type[SectionType]]:
    """The `check` of `plugins.find_plug_ins` for sections.

    base: the base class of the sections. target: the class variable that names the torch half, as "module:name".
    """

    def check(name: str, section: object) -> type[SectionType]:
        if not (isinstance(section, type) and issubclass(section, base)):
            raise ValueError(f"{section!r} is not a subclass of {base.__module__}.{base.__name__}")
        if name_of(section) != name:
            raise ValueError(f"the entry point is named {name!r}, its section {name_of(section)!r}")
        if not re.fullmatch(r"[\w.]+:\w+", getattr(section, target, "")):
            raise ValueError(f'{section.__module__}.{section.__name__} must set {target} = "module:name"')
        return section

    return check


def not_allowed(field: str, given: object, allowed: str) -> PydanticCustomError:
    """The error of a rule that concerns several fields. Raise it in a validator; `field` is appended to the section's path."""
    return PydanticCustomError(
        "not_allowed", "is {given}; allowed: {allowed}", {"field": field, "given": str(given), "allowed": allowed}
    )


def as_tuple(value: Any) -> Any:
    """The value, converted to a tuple if it is a list. JSON has no tuples, and strict mode accepts no list as a tuple."""
    return tuple(value) if isinstance(value, list) else value


def _clean_text(value: str) -> str:
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise ValueError("control characters are not allowed")
    return value


Text = Annotated[str, AfterValidator(_clean_text)]
RelativePath = Annotated[Text, Field(min_length=1, max_length=300, pattern=FILE_PATTERN)]
