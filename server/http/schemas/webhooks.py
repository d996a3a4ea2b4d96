"""The JSON of webhooks, silences and sent messages in requests and responses. Times are UTC epoch seconds."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from fastapi import Path
from pydantic import ConfigDict, Field, StringConstraints, model_validator

from server.http.schemas.runs import MAX_ID, Answer
from stablessm_core.spec.section import Section, Text

EVENT = r"^(alert|run)(\.[a-z_]{1,40})?$"
KIND = r"^[a-z][a-z0-9_]{0,40}(\.[a-z_]{1,18})?$"
MAX_SILENCE_SECONDS = 366 * 86_400.0
Format = Literal["json", "slack", "discord", "teams", "ntfy"]
State = Literal["waiting", "sent", "failed", "silenced", "inhibited"]

WebhookId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the webhook.", examples=[1])]
SilenceId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the silence.", examples=[1])]

EXAMPLE_WEBHOOK: dict[str, Any] = {
    "id": 1,
    "url": "https://hooks.example.org/...",
    "format": "slack",
    "events": ["alert.critical", "run"],
    "state": "failing",
    "failures": 2,
    "last_error": "it answered 500",
    "last_sent_at": 1763712004.5,
    "last_answer": "it answered 500",
    "created_at": 1763712000.0,
}
EXAMPLE_SILENCE: dict[str, Any] = {
    "id": 1,
    "run_id": 7,
    "project": None,
    "kind": "boundary_distance",
    "until": 1763726400.0,
    "created_at": 1763712000.0,
    "created_by": "alice",
}
EXAMPLE_NOTIFICATION: dict[str, Any] = {
    "id": 5,
    "webhook_id": 1,
    "destination": "https://hooks.example.org/...",
    "kind": "nonfinite_loss",
    "severity": "critical",
    "count": 1000,
    "first_at": 1763712003.5,
    "last_at": 1763712031.0,
    "message": "the training loss is NaN",
    "state": "sent",
    "due_at": 1763712008.5,
    "sent_at": 1763712009.1,
    "repeated": 0,
    "tries": 1,
    "answer": "it answered 200",
}


class WebhookRequest(Section):
    """An address and the events sent to it: `alert` or `alert.<severity or kind>`, `run` or `run.<final status>`, `run.lost`,
    `run.found`."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"url": "https://hooks.example.org/T1", "events": ["alert.critical", "run"], "format": "json"}]
        }
    )
    url: Annotated[str, StringConstraints(min_length=1, max_length=500)] = Field(
        description="An https address, or `mailto:` and an e-mail address."
    )
    events: list[Annotated[str, StringConstraints(pattern=EVENT)]] = Field(min_length=1, max_length=20)
    format: Format = Field(
        "json",
        description="`json`: every event, signed, for programs. The others: messages for people, in the format of that service. "
        "Mail ignores this field.",
    )


class WebhookAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_WEBHOOK]})
    id: int
    url: str = Field(description="The address without its path, which may be secret.")
    format: Literal["json", "slack", "discord", "teams", "ntfy", "email"]
    events: list[str]
    state: Literal["on", "failing", "off"] = Field(description="`off` after too many failures, until it is enabled again.")
    failures: int = Field(description="Number of consecutive failed deliveries.")
    last_error: str
    last_sent_at: float | None = Field(description="Time of the last delivery, also of a failed one; null before the first.")
    last_answer: str = Field(description="What the receiver answered to the last delivery, or why it was not reached.")
    created_at: float


class NewWebhook(WebhookAnswer):
    """A webhook with its signing key, which no other response shows."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_WEBHOOK | {"signing_key": "9f86d0..."}]})
    signing_key: str = Field(
        description="X-StableSSM-Signature is `sha256=` and the HMAC-SHA-256 of the body with this key. "
        "Only the format `json` is signed."
    )


class WebhookList(Answer):
    webhooks: list[WebhookAnswer]


class WebhookTest(Answer):
    """What the receiver answered to a test message."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"webhook_id": 1, "accepted": False, "answer": "it answered 404"}]})
    webhook_id: int
    accepted: bool
    answer: str


class SilenceRequest(Section):
    """No message about events that match all given conditions is sent before the time `until`."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"run_id": 7, "until": EXAMPLE_SILENCE["until"]}]})
    run_id: Annotated[int, Field(ge=1, le=MAX_ID)] | None = Field(None, description="Events of this run; null for all runs.")
    project: Annotated[Text, StringConstraints(min_length=1, max_length=200)] | None = Field(
        None, description="Events of the runs of this project; null for all projects."
    )
    kind: Annotated[str, StringConstraints(pattern=KIND)] | None = Field(
        None, description="Events of this kind: a kind of alert, or `run.finished`, `run.lost` and so on; null for all kinds."
    )
    until: float = Field(ge=0, le=1e11, description="When the silence ends; at most a year from now.")

    @model_validator(mode="after")
    def has_a_condition(self) -> Self:
        if self.run_id is None and self.project is None and self.kind is None:
            raise ValueError("a silence needs run_id, project or kind")
        return self


class SilenceAnswer(Answer):
    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_SILENCE]})
    id: int
    run_id: int | None
    project: str | None
    kind: str | None
    until: float
    created_at: float
    created_by: str = Field(description='Name of the user; "" if the token has no user.')


class SilenceList(Answer):
    silences: list[SilenceAnswer] = Field(description="The silences that have not ended, those that end first before the others.")


class NotificationAnswer(Answer):
    """A message about one kind of event of the run: whether it was sent, or why it was not."""

    model_config = ConfigDict(json_schema_extra={"examples": [EXAMPLE_NOTIFICATION]})
    id: int
    webhook_id: int
    destination: str = Field(description="Address of the webhook without its path.")
    kind: str = Field(description="A kind of alert, or `run.` and what happened to the run.")
    severity: Literal["info", "warning", "critical"]
    count: int = Field(description="Number of events that it is about.")
    first_at: float
    last_at: float
    message: str
    state: State
    due_at: float
    sent_at: float | None = Field(description="When it was sent, given up or held back; null while it waits.")
    repeated: int = Field(description="Number of earlier messages about the same alert.")
    tries: int
    answer: str = Field(description="What the receiver answered, or why the message was not sent.")
