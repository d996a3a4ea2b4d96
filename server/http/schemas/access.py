"""What the API answers and takes about access: tokens, the audit log, webhooks. Times are UTC epoch seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, StringConstraints

from server.http.schemas.runs import Answer
from stablessm_core.config import Name
from stablessm_core.section import Section

Scope = Literal["read", "submit", "admin"]
EVENT = r"^(alert|run)(\.[a-z_]{1,40})?$"

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
EXAMPLE_WEBHOOK: dict[str, Any] = {
    "id": 1,
    "url": "https://hooks.example.org/...",
    "events": ["alert.critical", "run"],
    "state": "failing",
    "failures": 2,
    "last_error": "it answered 500",
    "created_at": 1763712000.0,
}


class TokenRequest(Section):
    """A new token: `read` looks, `submit` also starts, changes and stops runs, `admin` may do everything."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"name": "ci", "scope": "submit", "expires_at": None}]})
    name: Annotated[Name, StringConstraints(min_length=1, max_length=100)]
    scope: Scope
    expires_at: Annotated[float, Field(ge=0, le=1e11)] | None = Field(None, description="When it ends; null for never.")
    user: Annotated[Name, StringConstraints(min_length=1, max_length=100)] | None = Field(
        None, description="Whose it is, by name; null for a new user named like the token."
    )
    names_users: bool = Field(
        False, description="Whether it is a trusted proxy's, whose header names the user of each request (STABLESSM_USER_HEADER)."
    )


class TokenAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TOKEN]})
    id: int
    name: str
    scope: Scope
    created_at: float
    expires_at: float | None
    revoked_at: float | None
    user_id: int | None = Field(description="Whose it is; null where nobody was named.")
    user: str | None = Field(description="The name of that user.")
    names_users: bool = Field(description="A trusted proxy's: its header names the user of each request.")
    last_used_at: float | None = Field(description="Of other server processes up to half a minute late.")
    state: Literal["live", "expired", "revoked"]


class NewToken(TokenAnswer):
    """A token with its secret, which is shown this once."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_TOKEN | {"secret": "ssm_..."}]})
    secret: str


class TokenList(Answer):
    tokens: list[TokenAnswer]


class AuditEntry(Answer):
    """One write or sign-in and the status it was answered with."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_AUDIT]})
    id: int
    at: float
    token_id: int | None = Field(description="null for the token of the settings, and for nobody.")
    token_name: str = Field(description='As it was then; "" when nobody was recognised.')
    user_name: str = Field(description='As it was then; "" when nobody was named.')
    address: str
    method: str
    path: str
    status: int
    run_id: int | None


class AuditList(Answer):
    audit: list[AuditEntry]
    next_cursor: int | None = Field(description="Give it as `cursor` for the next page; null on the last one.")
    waiting: int = Field(description="Rows of this server process that are not stored yet.")
    lost: int = Field(description="Rows that could not be stored since it started; its log has them.")
    skipped: int = Field(description="Refused writes of strangers beyond those that are recorded.")


class WebhookRequest(Section):
    """An address and what it is told: `alert` or `alert.<severity or kind>`, `run` or `run.<final status>`."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"url": "https://hooks.example.org/T1", "events": ["alert.critical", "run"]}]}
    )
    url: Annotated[str, StringConstraints(min_length=1, max_length=500)]
    events: list[Annotated[str, StringConstraints(pattern=EVENT)]] = Field(min_length=1, max_length=20)


class WebhookAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_WEBHOOK]})
    id: int
    url: str = Field(description="Without its path, which may be a secret.")
    events: list[str]
    state: Literal["on", "failing", "off"] = Field(description="off: it failed too often; enable switches it on again.")
    failures: int = Field(description="In a row.")
    last_error: str
    created_at: float


class NewWebhook(WebhookAnswer):
    """A webhook with the key of its signatures, which is shown this once."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_WEBHOOK | {"signing_key": "9f86d0..."}]})
    signing_key: str = Field(description="X-StableSSM-Signature is `sha256=` and the HMAC-SHA-256 of the body under it.")


class WebhookList(Answer):
    webhooks: list[WebhookAnswer]
