"""The service itself: queues, workers, tokens, webhooks, the audit log, and whether it is well."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from stablessm_core.client.connection import Connection


def queues(self: Connection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = self.get("/api/queues")["queues"]
    return found


def queue(self: Connection, name: str) -> dict[str, Any]:
    found: dict[str, Any] = self.get(f"/api/queues/{quote(name, safe='')}")
    return found


def change_queue(self: Connection, name: str, **changes: Any) -> dict[str, Any]:
    """Set `max_running` (None for no limit) and `paused`; what is not given stays."""
    changed: dict[str, Any] = self.send("PATCH", f"/api/queues/{quote(name, safe='')}", changes)
    return changed


def workers(self: Connection) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = self.get("/api/workers")["workers"]
    return found


def create_token(
    self: Connection, name: str, scope: str, *, days: float | None = None, user: str | None = None, names_users: bool = False
) -> dict[str, Any]:
    """A new token of the scope read, submit or admin; its `secret` is in this answer only.

    It belongs to the user of that name, made if there is none; with none given, to a new one named like the token. With
    `names_users` it is a trusted proxy's, whose header names the user of each request.
    """
    ends = time.time() + days * 86_400 if days is not None else None
    asked: dict[str, Any] = {"name": name, "scope": scope, "expires_at": ends}
    asked |= {"user": user} if user is not None else {}
    asked |= {"names_users": True} if names_users else {}
    made: dict[str, Any] = self.send("POST", "/api/tokens", asked)
    return made


def tokens(self: Connection) -> list[dict[str, Any]]:
    """Tokens, newest first, at most 1,000: revoked and expired ones too."""
    found: list[dict[str, Any]] = self.get("/api/tokens")["tokens"]
    return found


def revoke_token(self: Connection, token_id: int) -> dict[str, Any]:
    revoked: dict[str, Any] = self.send("DELETE", f"/api/tokens/{token_id}")
    return revoked


def audit(self: Connection, *, run_id: int | None = None, limit: int | None = None) -> Iterator[dict[str, Any]]:
    """Writes and sign-ins, newest first, refused ones included; all pages of them, at most `limit`."""
    return self.pages("/api/audit", "audit", limit, run_id=run_id)


def create_webhook(self: Connection, url: str, events: Sequence[str]) -> dict[str, Any]:
    """An address to tell of events such as alert.critical or run.diverged; `signing_key` is in this answer only."""
    made: dict[str, Any] = self.send("POST", "/api/webhooks", {"url": url, "events": list(events)})
    return made


def webhooks(self: Connection) -> list[dict[str, Any]]:
    """Webhooks with what became of their last call."""
    found: list[dict[str, Any]] = self.get("/api/webhooks")["webhooks"]
    return found


def enable_webhook(self: Connection, webhook_id: int) -> dict[str, Any]:
    """Switch on again what was switched off after failures; what it missed is sent now."""
    changed: dict[str, Any] = self.send("POST", f"/api/webhooks/{webhook_id}/enable")
    return changed


def delete_webhook(self: Connection, webhook_id: int) -> None:
    self.send("DELETE", f"/api/webhooks/{webhook_id}")


def theory(
    self: Connection, *, time: str | None = None, a: float | None = None, b: float | None = None, run: int | None = None,
    layer: int = 0, step: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Every map's curves as Plotly figures; with `run` also its weights as points, and what its eigenvalues can remember."""
    found: dict[str, Any] = self.get("/api/theory", time=time, a=a, b=b, run=run, layer=layer, step=step)
    return found


def systems(self: Connection) -> list[dict[str, Any]]:
    """Every layer: its equation, the maps that it can have, where its eigenvalues start, its size, and a small run of it."""
    found: list[dict[str, Any]] = self.get("/api/systems")["systems"]
    return found


def health(self: Connection) -> dict[str, Any]:
    """The server process is up."""
    found: dict[str, Any] = self.get("/healthz")
    return found


def ready(self: Connection) -> dict[str, Any]:
    """The database answers and its schema fits. Raises ApiError (503) where not."""
    found: dict[str, Any] = self.get("/readyz")
    return found


def metrics(self: Connection) -> str:
    """Prometheus text."""
    return self.request("GET", "/metrics").text
