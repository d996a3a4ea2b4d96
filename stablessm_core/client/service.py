"""Requests about the service itself: queues, workers, tokens, users, webhooks, silences, audit log, theory, health."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from stablessm_core.client.connection import Connection


class ServiceMethods(Connection):
    """Methods of `Client` for the service and its users."""

    def queues(self) -> list[dict[str, Any]]:
        """All queues, each with its limit and its numbers of waiting and running runs."""
        found: list[dict[str, Any]] = self.get("/api/queues")["queues"]
        return found

    def queue(self, name: str) -> dict[str, Any]:
        """One queue, with the same fields as in `queues`."""
        found: dict[str, Any] = self.get(f"/api/queues/{quote(name, safe='')}")
        return found

    def change_queue(self, name: str, **changes: Any) -> dict[str, Any]:
        """Set `max_running` (None for no limit) and `paused`. Omitted settings do not change."""
        changed: dict[str, Any] = self.send("PATCH", f"/api/queues/{quote(name, safe='')}", changes)
        return changed

    def workers(self) -> list[dict[str, Any]]:
        """The workers that have reported to the server, with their devices and data sets."""
        found: list[dict[str, Any]] = self.get("/api/workers")["workers"]
        return found

    def create_token(
        self, name: str, scope: str, *, days: float | None = None, user: str | None = None, names_users: bool = False
    ) -> dict[str, Any]:
        """A new token with the scope read, submit, admin or ingest. Only this response contains the `secret` of the token.

        user: the name of the token's user. A user that does not exist is created. By default, a new user has the token's name.
        names_users: True for the token of a trusted proxy that names the user of each request in a header.
        """
        expires_at = time.time() + days * 86_400 if days is not None else None
        body: dict[str, Any] = {"name": name, "scope": scope, "expires_at": expires_at}
        body |= {"user": user} if user is not None else {}
        body |= {"names_users": True} if names_users else {}
        made: dict[str, Any] = self.send("POST", "/api/tokens", body)
        return made

    def tokens(self) -> list[dict[str, Any]]:
        """At most 1,000 tokens, newest first, including revoked and expired tokens."""
        found: list[dict[str, Any]] = self.get("/api/tokens")["tokens"]
        return found

    def revoke_token(self, token_id: int) -> dict[str, Any]:
        """Revoke a token. Returns the revoked token."""
        revoked: dict[str, Any] = self.send("DELETE", f"/api/tokens/{token_id}")
        return revoked

    def me(self) -> dict[str, Any]:
        """This client's token, scope and user, with the user's quotas and current usage."""
        found: dict[str, Any] = self.get("/api/me")
        return found

    def name_me(self, name: str) -> dict[str, Any]:
        """Set the name that other users see. If the token has no user, a user with this name is created."""
        named: dict[str, Any] = self.send("PATCH", "/api/me", {"name": name})
        return named

    def users(self) -> list[dict[str, Any]]:
        """All users with their permissions, quotas and current usage. Needs the scope `admin`."""
        found: list[dict[str, Any]] = self.get("/api/users")["users"]
        return found

    def create_user(self, name: str, *, identity: str | None = None) -> dict[str, Any]:
        """A new user. identity: the name by which the header of a trusted proxy identifies the user."""
        made: dict[str, Any] = self.send("POST", "/api/users", {"name": name, "identity": identity})
        return made

    def change_user(self, user_id: int, **changes: Any) -> dict[str, Any]:
        """Change the settings of a user. Omitted settings do not change.

        changes: `name`, `identity`, `may_change_all`, `max_running`, `max_queued` and `max_bytes`.
        """
        changed: dict[str, Any] = self.send("PATCH", f"/api/users/{user_id}", changes)
        return changed

    def audit(self, *, run_id: int | None = None, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """At most `limit` audit log entries, newest first, for writes and sign-ins, including refused attempts."""
        return self.pages("/api/audit", "audit", limit, run_id=run_id)

    def create_webhook(self, url: str, events: Sequence[str], *, format: str = "json") -> dict[str, Any]:
        """A new webhook that sends events such as alert.critical or run.diverged to a URL, or mail to a `mailto:` address.

        format: json (signed, for programs), slack, discord, teams, ntfy. Only this response contains the `signing_key`.
        """
        body = {"url": url, "events": list(events), "format": format}
        made: dict[str, Any] = self.send("POST", "/api/webhooks", body)
        return made

    def webhooks(self) -> list[dict[str, Any]]:
        """All webhooks, each with the result of its last call."""
        found: list[dict[str, Any]] = self.get("/api/webhooks")["webhooks"]
        return found

    def enable_webhook(self, webhook_id: int) -> dict[str, Any]:
        """Enable a webhook that was disabled after failures. The server then sends the missed events."""
        changed: dict[str, Any] = self.send("POST", f"/api/webhooks/{webhook_id}/enable")
        return changed

    def test_webhook(self, webhook_id: int) -> dict[str, Any]:
        """Send a test message now; returns whether the receiver `accepted` it and its `answer`."""
        tested: dict[str, Any] = self.send("POST", f"/api/webhooks/{webhook_id}/test")
        return tested

    def delete_webhook(self, webhook_id: int) -> None:
        """Delete a webhook."""
        self.send("DELETE", f"/api/webhooks/{webhook_id}")

    def create_silence(
        self, until: float, *, run_id: int | None = None, project: str | None = None, kind: str | None = None
    ) -> dict[str, Any]:
        """Send no messages about this run, project or kind of event until a time (UTC epoch seconds)."""
        body = {"run_id": run_id, "project": project, "kind": kind, "until": until}
        made: dict[str, Any] = self.send("POST", "/api/silences", body)
        return made

    def silences(self) -> list[dict[str, Any]]:
        """The silences that have not ended."""
        found: list[dict[str, Any]] = self.get("/api/silences")["silences"]
        return found

    def delete_silence(self, silence_id: int) -> None:
        """End a silence now."""
        self.send("DELETE", f"/api/silences/{silence_id}")

    def theory(
        self, *, time: str | None = None, a: float | None = None, b: float | None = None, run: int | None = None,
        layer: int = 0, step: int | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Every map's curves as Plotly figures.

        With `run`, the response also contains the run's weights as points and the memory of the run's eigenvalues.
        """
        found: dict[str, Any] = self.get("/api/theory", time=time, a=a, b=b, run=run, layer=layer, step=step)
        return found

    def paper(self) -> dict[str, Any]:
        """The claims of the StableSSM paper, each with our verdict, and the reports that judge them."""
        found: dict[str, Any] = self.get("/api/paper")
        return found

    def paper_report(self, report: str, format: str = "json") -> bytes:
        """A report such as `table5` or `table2-released` as a file: json, html, md or tex."""
        return self.request("GET", f"/api/paper/reports/{quote(report, safe='')}", params={"format": format}).content

    def systems(self) -> list[dict[str, Any]]:
        """Every layer with its equation, possible maps, initial eigenvalues, parameter count and example configuration."""
        found: list[dict[str, Any]] = self.get("/api/systems")["systems"]
        return found

    def health(self) -> dict[str, Any]:
        """The response of the liveness check, which succeeds if the server process is running."""
        found: dict[str, Any] = self.get("/healthz")
        return found

    def ready(self) -> dict[str, Any]:
        """The response of the readiness check. Raises ApiError (503) unless the database responds and has the right schema."""
        found: dict[str, Any] = self.get("/readyz")
        return found

    def metrics(self) -> str:
        """The server's metrics in the Prometheus text format."""
        return self.request("GET", "/metrics").text
