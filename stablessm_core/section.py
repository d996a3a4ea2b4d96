"""What every section of the run configuration is made of: strict models, clean text, errors that say what is allowed."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

# One spelling per file: neither "..", "//" nor hidden files. What a worker lists can then be compared with what is asked for.
FILE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*$"


class Section(BaseModel):
    """Strict section: no coercion from strings, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)


def not_allowed(field: str, given: object, allowed: str) -> PydanticCustomError:
    """The error of a rule that spans fields; raise it in a validator. `field` is appended to the path of the section."""
    return PydanticCustomError(
        "not_allowed", "is {given}; allowed: {allowed}", {"field": field, "given": str(given), "allowed": allowed}
    )


def as_tuple(value: Any) -> Any:
    """A list as a tuple: JSON has lists only, and strict mode would refuse them."""
    return tuple(value) if isinstance(value, list) else value


def _clean_text(value: str) -> str:
    if any((ord(c) < 32 and c not in "\n\t") or ord(c) == 127 or 0xD800 <= ord(c) <= 0xDFFF for c in value):
        raise ValueError("control characters are not allowed")
    return value


Text = Annotated[str, AfterValidator(_clean_text)]
RelativePath = Annotated[Text, Field(min_length=1, max_length=300, pattern=FILE_PATTERN)]
