"""Runs: submitted, found, changed, stopped, compared, and what they warn of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from stablessm_core.client.connection import PAGE, Connection, given
from stablessm_core.config import RunConfig


def submit(
    self: Connection, config: RunConfig | Mapping[str, Any], *, key: str | None = None, queue: str | None = None,
    priority: int | None = None, gpu: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Queue a run. Repeated calls with the same `key` and configuration submit it once."""
    body = config.model_dump(mode="json") if isinstance(config, RunConfig) else dict(config)
    headers, place = {"Idempotency-Key": key} if key else {}, given(queue=queue, priority=priority, gpu=gpu)
    made: dict[str, Any] = self.send("POST", "/api/runs", body, headers=headers, params=place)
    return made


def run(self: Connection, run_id: int) -> dict[str, Any]:
    found: dict[str, Any] = self.get(f"/api/runs/{run_id}")
    return found


def runs(
    self: Connection, q: str | None = None, *, status: str | None = None, tag: str | None = None, sort: str | None = None,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Runs that match the filter, all pages of them, at most `limit`."""
    return self.pages("/api/runs", "runs", limit, q=q, status=status, tag=tag, sort=sort)


def update(self: Connection, run_id: int, **changes: Any) -> dict[str, Any]:
    """Change name, tags or notes; of a queued run also queue, priority and gpu."""
    changed: dict[str, Any] = self.send("PATCH", f"/api/runs/{run_id}", changes)
    return changed


def cancel(self: Connection, run_id: int) -> dict[str, Any]:
    """A queued run ends at once, a running one within seconds."""
    changed: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/cancel")
    return changed


def resume(self: Connection, run_id: int) -> dict[str, Any]:
    """A failed, diverged or cancelled run continues after its last checkpoint."""
    changed: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/resume")
    return changed


def clone(self: Connection, run_id: int, settings: Mapping[str, Any] | None = None, **place: Any) -> dict[str, Any]:
    """Submit the run's configuration again with values changed at dotted paths; `place`: queue, priority, gpu."""
    made: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/clone", {"set": dict(settings or {}), **place})
    return made


def compare(
    self: Connection,
    runs: Sequence[int] | None = None,
    *,
    sweep: int | None = None,
    q: str | None = None,
    group_by: str | None = None,
) -> dict[str, Any]:
    """Differences, curves and ranges of several runs."""
    named = ",".join(map(str, runs)) if runs is not None else None
    compared: dict[str, Any] = self.get("/api/compare", runs=named, sweep=sweep, q=q, group_by=group_by)
    return compared


def alerts(
    self: Connection,
    run_id: int | None = None,
    *,
    since: int = 0,
    severity: str | None = None,
    q: str | None = None,
    limit: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Alerts of one run (oldest first) or of all (newest first) with an id above `since`, all pages of them, at most `limit`.

    `severity` and `q`, a filter of runs, choose among the alerts of all runs.
    """
    if run_id is None:
        return self.pages("/api/alerts", "alerts", limit, since=since, severity=severity, q=q)
    return _of_run(self, run_id, since, limit)


def _of_run(self: Connection, run_id: int, since: int, left: int | None) -> Iterator[dict[str, Any]]:
    while left is None or left > 0:
        size = PAGE if left is None else min(left, PAGE)
        found = self.get(f"/api/runs/{run_id}/alerts", since=since, limit=size)["alerts"]
        yield from found
        if len(found) < size:
            return
        left, since = None if left is None else left - len(found), found[-1]["id"]
