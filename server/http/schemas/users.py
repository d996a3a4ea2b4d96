"""The JSON of users in requests and responses: their names, quotas and current use."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import ConfigDict, Field, StringConstraints

from server.http.schemas.access import Scope
from server.http.schemas.runs import MAX_ID, Answer
from stablessm_core.spec.section import Section, Text

UserId = Annotated[int, Path(ge=0, le=MAX_ID, description="Number of the user; 0 is the owner.", examples=[2])]
UserName = Annotated[Text, StringConstraints(min_length=1, max_length=100, strip_whitespace=True, pattern=r"^.+$")]
Identity = Annotated[Text, StringConstraints(min_length=1, max_length=200)]
MaxRuns = Annotated[int, Field(ge=0, le=1_000_000)]

EXAMPLE_USER: dict[str, Any] = {
    "id": 2,
    "name": "alice",
    "identity": "alice@example.org",
    "may_change_all": False,
    "max_running": 4,
    "max_queued": 200,
    "max_bytes": 50_000_000_000,
    "running": 1,
    "queued": 12,
    "bytes": 1_203_441_664,
    "created_at": 1763712000.0,
}
BYTES = "Bytes that all their runs may occupy when they submit another run; null for no limit."


class UserRequest(Section):
    """A new user."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "alice", "identity": "alice@example.org"}]})
    name: UserName
    identity: Identity | None = Field(None, description="Their identity in a trusted proxy's header.")


class UserPatch(Section):
    """The settings of a user that can be changed. Omitted fields do not change."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 4, "max_queued": 200}]})
    name: UserName | None = Field(None, description="null leaves it unchanged.")
    identity: Identity | None = Field(None, description="Their identity in a trusted proxy's header.")
    may_change_all: bool = Field(False, description="If true, they may change, cancel and resume the runs of other users.")
    max_running: MaxRuns | None = Field(None, description="How many of their runs may run at once; null for no limit.")
    max_queued: MaxRuns | None = Field(None, description="How many of their runs may be queued; null for no limit.")
    max_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = Field(None, description=BYTES)


class NamePatch(Section):
    """Your name, which all your runs show."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "alice"}]})
    name: UserName


class UserAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_USER]})
    id: int
    name: str
    identity: str | None
    may_change_all: bool
    max_running: int | None
    max_queued: int | None
    max_bytes: int | None
    running: int
    queued: int
    bytes: int = Field(description="Bytes that their runs occupy, including those in the trash.")
    created_at: float


class UserList(Answer):
    users: list[UserAnswer]


class Me(Answer):
    """The token of the request, with its scope and its user."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token_id": 3, "token": "laptop", "scope": "submit", "user": EXAMPLE_USER}]}
    )
    token_id: int | None = Field(description="null for the token of the settings.")
    token: str
    scope: Scope
    user: UserAnswer | None = Field(description="null if the token has no user; PATCH /api/me with a name creates one.")
