"""What the API answers and takes about users: their names, what they may use, and what they use now."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path
from pydantic import ConfigDict, Field, StringConstraints

from server.http.schemas.access import Scope
from server.http.schemas.runs import MAX_ID, Answer
from stablessm_core.section import Section, Text

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
BYTES = "Bytes that all runs of theirs may occupy when they submit another; null for no limit."


class UserRequest(Section):
    """A user, before a token or a proxy names them."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "alice", "identity": "alice@example.org"}]})
    name: UserName
    identity: Identity | None = Field(None, description="What a trusted proxy's header calls them.")


class UserPatch(Section):
    """What can be changed of a user; fields left out stay as they are."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"max_running": 4, "max_queued": 200}]})
    name: UserName | None = Field(None, description="null leaves it as it is.")
    identity: Identity | None = Field(None, description="What a trusted proxy's header calls them.")
    may_change_all: bool = Field(False, description="Whether they may change, cancel and resume runs of others.")
    max_running: MaxRuns | None = Field(None, description="Runs of theirs that may run at once; null for no limit.")
    max_queued: MaxRuns | None = Field(None, description="Runs of theirs that may wait; null for no limit.")
    max_bytes: Annotated[int, Field(ge=0, le=2**62)] | None = Field(None, description=BYTES)


class NamePatch(Section):
    """The name that you are shown under."""

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
    bytes: int = Field(description="What the runs of theirs occupy, those in the trash too.")
    created_at: float


class UserList(Answer):
    users: list[UserAnswer]


class Me(Answer):
    """Who asks: the token, what it may do, and whose it is."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"token_id": 3, "token": "laptop", "scope": "submit", "user": EXAMPLE_USER}]}
    )
    token_id: int | None = Field(description="null for the token of the settings.")
    token: str
    scope: Scope
    user: UserAnswer | None = Field(description="null while nobody was named: PATCH /api/me names you.")
