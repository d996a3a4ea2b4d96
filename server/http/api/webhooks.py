"""Webhooks: addresses to which alerts and ends of runs are sent. Only administrators have access."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Path, Request
from sqlalchemy import func, select

from server.database.models import Webhook
from server.errors import Conflict, Invalid, NotFound
from server.http.api.deps import DatabaseDep, SettingsDep
from server.http.schemas.access import NewWebhook, WebhookAnswer, WebhookList, WebhookRequest
from server.http.schemas.runs import MAX_ID
from server.webhooks.guarded_post import PORTS, Failed, Refused, check_form, resolve
from server.webhooks.registry import MAX_FAILURES, MAX_WEBHOOKS, new_webhook, signing_key

router = APIRouter(prefix="/api/webhooks", tags=["webhooks"])

WebhookId = Annotated[int, Path(ge=1, le=MAX_ID, description="Number of the webhook.", examples=[1])]
ALLOWED = f"https://public-name/..., port {' or '.join(map(str, PORTS))}; STABLESSM_WEBHOOK_HOSTS allows others by name"


@router.post("", status_code=201, response_model=NewWebhook)
def create(request: Request, wanted: WebhookRequest, database: DatabaseDep, settings: SettingsDep) -> Any:
    """Send future events to an address. Only this response contains the key that signs the events."""
    try:
        resolve(check_form(wanted.url, frozenset(settings.webhook_hosts)))
    except (Refused, Failed) as error:
        raise Invalid(str(error), field="url", allowed=ALLOWED) from None
    with database.write() as session:
        if (session.scalar(select(func.count()).select_from(Webhook)) or 0) >= MAX_WEBHOOKS:
            raise Conflict(f"there are already {MAX_WEBHOOKS} webhooks", field="webhooks", allowed=f"at most {MAX_WEBHOOKS}")
        webhook = new_webhook(session, wanted.url, list(dict.fromkeys(wanted.events)))
    key = signing_key(request.app.state.webhook_delivery.token, webhook.id, webhook.created_at)
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
    request.app.state.webhook_delivery.wake(webhook_id)
    return webhook_json(webhook)


@router.delete("/{webhook_id}", status_code=204)
def delete(webhook_id: WebhookId, database: DatabaseDep) -> None:
    """Delete a webhook."""
    with database.write() as session:
        session.delete(_find(session.get(Webhook, webhook_id), webhook_id))


def webhooks_json(database: DatabaseDep) -> dict[str, Any]:
    with database.read() as session:
        return {"webhooks": [webhook_json(webhook) for webhook in session.scalars(select(Webhook).order_by(Webhook.id))]}


def webhook_json(webhook: Webhook) -> dict[str, Any]:
    parts = urlsplit(webhook.url)
    secret = parts.path not in ("", "/") or parts.query  # the path of a webhook's address is often its only secret
    return {
        "id": webhook.id,
        "url": f"{parts.scheme}://{parts.netloc}/" + ("..." if secret else ""),
        "events": webhook.events,
        "state": "off" if webhook.failures >= MAX_FAILURES else "failing" if webhook.failures else "on",
        "failures": webhook.failures,
        "last_error": webhook.last_error,
        "created_at": webhook.created_at,
    }


def _find(webhook: Webhook | None, number: int) -> Webhook:
    if webhook is None:
        raise NotFound(f"there is no webhook {number}", field="webhook_id")
    return webhook
