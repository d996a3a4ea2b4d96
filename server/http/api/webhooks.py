"""Webhooks: addresses to which alerts and changes of runs are sent. Only administrators have access."""

from __future__ import annotations

import time
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import func, select

from server.database.models import Webhook
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep, SettingsDep
from server.http.schemas.webhooks import NewWebhook, WebhookAnswer, WebhookId, WebhookList, WebhookRequest, WebhookTest
from server.settings import Settings
from server.webhooks.delivery import WebhookDelivery
from server.webhooks.groups import drop_waiting, send_again
from server.webhooks.guarded_post import PORTS, Failed, Refused, check_form, resolve
from server.webhooks.registry import MAX_FAILURES, MAX_WEBHOOKS, mark_test, new_webhook, signing_key
from server.webhooks.transport import recipient_of, shown_url

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])

ALLOWED = f"https://public-name/..., port {' or '.join(map(str, PORTS))}; STABLESSM_WEBHOOK_HOSTS allows others by name"


@router.post("", status_code=201, response_model=NewWebhook)
def create(request: Request, wanted: WebhookRequest, database: DatabaseDep, settings: SettingsDep) -> Any:
    """Send future events to an address. Only this response contains the key that signs the events of the format `json`."""
    format = _check_address(wanted, settings)
    with database.write() as session:
        if (session.scalar(select(func.count()).select_from(Webhook)) or 0) >= MAX_WEBHOOKS:
            raise Conflict(f"there are already {MAX_WEBHOOKS} webhooks", field="webhooks", allowed=f"at most {MAX_WEBHOOKS}")
        webhook = new_webhook(session, wanted.url, list(dict.fromkeys(wanted.events)), format)
    key = signing_key(_delivery(request).token, webhook.id, webhook.created_at)
    return webhook_json(webhook) | {"signing_key": key}


@router.get("", response_model=WebhookList)
def index(database: DatabaseDep) -> Any:
    """All webhooks, each with the result of the last delivery."""
    return webhooks_json(database)


@router.post("/{webhook_id}/enable", response_model=WebhookAnswer)
def enable(request: Request, webhook_id: WebhookId, database: DatabaseDep) -> Any:
    """Enable a webhook that was disabled after failures. It then receives the events that it missed."""
    with database.write() as session:
        webhook = _find(session.get(Webhook, webhook_id, with_for_update=True), webhook_id)
        webhook.failures = 0
        if webhook.format != "json":  # the cursor of the format json stays before the events that failed
            send_again(session, webhook_id, time.time())
    _delivery(request).wake(webhook_id)
    return webhook_json(webhook)


@router.post("/{webhook_id}/test", response_model=WebhookTest)
def test(request: Request, webhook_id: WebhookId, database: DatabaseDep) -> Any:
    """Send a test message now, and say what the receiver answered. A failed test does not count as a failed delivery."""
    with database.read() as session:
        webhook = _find(session.get(Webhook, webhook_id), webhook_id)
    outcome = _delivery(request).transport.send_test(webhook)
    with database.write() as session:
        mark_test(session, webhook_id, outcome.answer)
    return {"webhook_id": webhook_id, "accepted": outcome.accepted, "answer": outcome.answer}


@router.delete("/{webhook_id}", status_code=204)
def delete(webhook_id: WebhookId, database: DatabaseDep) -> None:
    """Delete a webhook. Messages that wait for it are not sent."""
    with database.write() as session:
        drop_waiting(session, webhook_id, time.time())
        session.delete(_find(session.get(Webhook, webhook_id), webhook_id))


def webhooks_json(database: DatabaseDep) -> dict[str, Any]:
    with database.read() as session:
        return {"webhooks": [webhook_json(webhook) for webhook in session.scalars(select(Webhook).order_by(Webhook.id))]}


def webhook_json(webhook: Webhook) -> dict[str, Any]:
    return {
        "id": webhook.id,
        "url": shown_url(webhook.url),
        "format": webhook.format,
        "events": webhook.events,
        "state": "off" if webhook.failures >= MAX_FAILURES else "failing" if webhook.failures else "on",
        "failures": webhook.failures,
        "last_error": webhook.last_error,
        "last_sent_at": webhook.last_sent_at,
        "last_answer": webhook.last_answer,
        "created_at": webhook.created_at,
    }


def _check_address(wanted: WebhookRequest, settings: Settings) -> str:
    """The format of the messages to the address. Raises Invalid if the server may not or cannot send to the address."""
    if wanted.url.lower().startswith("mailto:"):
        if recipient_of(wanted.url) is None:
            raise Invalid("it is not one e-mail address", field="url", allowed="mailto:someone@example.org")
        if settings.smtp_host is None:
            raise Invalid(
                "this server has no mail server", field="url", allowed="https://...; STABLESSM_SMTP_HOST allows mailto:"
            )
        return "email"
    try:
        resolve(check_form(wanted.url, frozenset(settings.webhook_hosts)))
    except (Refused, Failed) as error:
        raise Invalid(str(error), field="url", allowed=ALLOWED) from None
    return wanted.format


def _delivery(request: Request) -> WebhookDelivery:
    return request.app.state.webhook_delivery  # type: ignore[no-any-return]


def _find(webhook: Webhook | None, number: int) -> Webhook:
    if webhook is None:
        raise NotFound(f"there is no webhook {number}", field="webhook_id")
    return webhook
