"""The base of every section of the run configuration, importable by tasks and alerts that bring a section of their own."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Strict section: no coercion from strings, no unknown fields, no NaN or infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, validate_default=True)
