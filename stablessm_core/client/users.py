"""Who you are, your name, and for administrators all users: what they may do and use."""

from __future__ import annotations

from typing import Any

from stablessm_core.client.connection import Connection


def me(self: Connection) -> dict[str, Any]:
    """Token, scope and user of this client, with quotas and what is used of them."""
    found: dict[str, Any] = self.get("/api/me")
    return found


def name_me(self: Connection, name: str) -> dict[str, Any]:
    """Set the name that you are shown under; a token that was nobody's becomes yours."""
    named: dict[str, Any] = self.send("PATCH", "/api/me", {"name": name})
    return named


def users(self: Connection) -> list[dict[str, Any]]:
    """All users with grants and quotas, and what they use now."""
    found: list[dict[str, Any]] = self.get("/api/users")["users"]
    return found


def create_user(self: Connection, name: str, *, identity: str | None = None) -> dict[str, Any]:
    """A user; `identity` is what a trusted proxy's header calls them."""
    made: dict[str, Any] = self.send("POST", "/api/users", {"name": name, "identity": identity})
    return made


def change_user(self: Connection, user_id: int, **changes: Any) -> dict[str, Any]:
    """Set `name`, `identity`, `may_change_all`, `max_running`, `max_queued`, `max_bytes`; what is not given stays."""
    changed: dict[str, Any] = self.send("PATCH", f"/api/users/{user_id}", changes)
    return changed
