"""The JSON of tokens and the audit log in requests and responses. Times are UTC epoch seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from server.http.schemas.runs import Answer
from stablessm_core.spec.config import Name
from stablessm_core.spec.section import Section

Scope = Literal["read", "submit", "admin", "ingest"]

EXAMPLE_TOKEN: dict[str, Any] = {
    "id": 3,
    "name": "ci",
    "scope": "submit",
    "created_at": 1763712000.0,
    "expires_at": 1766304000.0,
    "revoked_at": None,
    "last_used_at": 1763712003.5,
    "user_id": 2,
    "user": "alice",
    "names_users": False,
    "state": "live",
}
EXAMPLE_AUDIT: dict[str, Any] = {
    "id": 41,
    "at": 1763712003.5,
    "token_id": 3,
    "token_name": "ci",
    "user_name": "alice",
    "address": "192.0.2.7",
    "method": "POST",
    "path": "/api/runs/7/cancel",
    "status": 200,
    "run_id": 7,
}


class TokenRequest(Section):
    """A new token. The scope `read` allows reading. `submit` also allows submitting, changing and cancelling runs. `admin`
    allows everything. `ingest` only allows reporting runs that another program trains."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "scope": "submit", "expires_at": None}]})
    name: Annotated[Name, StringConstraints(min_length=1, max_length=100)]
    scope: Scope
    expires_at: Annotated[float, Field(ge=0, le=1e11)] | None = Field(None, description="When it expires; null for never.")
    user: Annotated[Name, StringConstraints(min_length=1, max_length=100)] | None = Field(
        None, description="The user that the token belongs to; null for a new user with the name of the token."
    )
    names_users: bool = Field(
        False,
        description="If true, it belongs to a trusted proxy whose header names the user of each request (STABLESSM_USER_HEADER).",
    )


class TokenAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TOKEN]})
    id: int
    name: str
    scope: Scope
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    user_id: int | None = Field(description="Number of its user; null if it belongs to no user.")
    user: str | None = Field(description="Name of its user; null if it belongs to no user.")
    names_users: bool = Field(description="If true, it belongs to a trusted proxy whose header names the user of each request.")
    last_used_at: float | None = Field(description="A use in another server process may appear up to half a minute late.")
    state: Literal["live", "expired", "revoked"]


class NewToken(TokenAnswer):
    """A token with its secret, which no other response shows."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TOKEN | {"secret": "ssm_..."}]})
    secret: str


class TokenList(Answer):
    tokens: list[TokenAnswer]


class AuditEntry(Answer):
    """A write or sign-in with the status of its response."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_AUDIT]})
    id: int
    at: float
    token_id: int | None = Field(description="null for the token of the settings, and if the request had no valid token.")
    token_name: str = Field(description='Name of the token at that time; "" if the request had no valid token.')
    user_name: str = Field(description='Name of the user at that time; "" if there was none.')
    address: str
    method: str
    path: str
    status: int
    run_id: int | None


class AuditList(Answer):
    audit: list[AuditEntry]
    next_cursor: int | None = Field(description="Send it as `cursor` to get the next page; null on the last page.")
    waiting: int = Field(description="Number of rows that this server process has not stored yet.")
    lost: int = Field(description="Number of rows that this process could not store since it started; they are in its log.")
    skipped: int = Field(
        description="Number of refused writes without a valid token that were not recorded, because there were too many."
    )
