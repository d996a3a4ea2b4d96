"""The JSON that accompanies the list of runs: saved views, filter fields, small curves, actions on many runs."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from server.http.schemas.runs import MAX_ID, Answer
from stablessm_core.spec.section import Section, Text

MAX_CHOSEN = 500
BulkAction = Literal["cancel", "clone", "delete", "hide", "restore", "show"]
ViewId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the view.", examples=[1])]
ViewName = Annotated[Text, StringConstraints(min_length=1, max_length=100, strip_whitespace=True, pattern=r"^.+$")]
EXAMPLE_VIEW: dict[str, Any] = {
    "id": 1, "name": "died at large rates", "query": "q=status%3Ddiverged&sort=-largest_ratio", "created_at": 1763712000.0,
}  # fmt: skip


class ViewRequest(Section):
    """A view to save under a name. It replaces an existing view with the same name."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": EXAMPLE_VIEW["name"], "query": EXAMPLE_VIEW["query"]}]})
    name: ViewName
    query: Annotated[Text, StringConstraints(max_length=3000)] = Field(
        description="The query string of `GET /`: `q`, `status`, `tag`, `mine`, `hidden`, `sort`, `columns`."
    )


class ViewAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_VIEW]})
    id: int
    name: str
    query: str
    created_at: float


class ViewList(Answer):
    views: list[ViewAnswer]


class FieldAnswer(Answer):
    name: str
    kind: str = Field(description="number, text, flag, time, seconds, tag, map, layer, alerts or submitter.")
    values: list[str] = Field(
        description="The possible values, or the values that occur in the stored runs; empty if there are too many."
    )


class FieldList(Answer):
    fields: list[FieldAnswer]


class SparkAnswer(Answer):
    last: list[float] = Field(description="Training loss, at most 48 points over all steps, four digits.")
    lost: int | None = Field(description="Index of the first point with a NaN or infinite loss.")


class SparkList(Answer):
    sparks: dict[int, SparkAnswer] = Field(description="By run number, without runs that have no recorded loss.")


class BulkRequest(BaseModel):
    """The runs to which the action is applied, one by one."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra={"examples": [{"runs": [1, 2, 3]}]})
    runs: list[Annotated[int, Field(ge=1, le=MAX_ID)]] = Field(min_length=1, max_length=MAX_CHOSEN)


class BulkRefusal(Answer):
    run: int
    message: str


class BulkAnswer(Answer):
    """The result for each run. The refusal of one run does not affect the other runs."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"done": [1, 2], "made": {}, "refused": [{"run": 3, "message": "run 3 is finished"}]}]}
    )
    done: list[int]
    made: dict[int, int] = Field(description="Number of each clone, keyed by the number of the original run.")
    refused: list[BulkRefusal]
