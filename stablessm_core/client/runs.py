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


def verdict(self: Connection, run_id: int) -> dict[str, Any]:
    """What became of the run: `cause`, `summary`, `events`, `evidence`, `try`; so far, while it trains."""
    found: dict[str, Any] = self.get(f"/api/runs/{run_id}/verdict")
    return found


def runs(
    self: Connection, q: str | None = None, *, status: str | None = None, tag: str | None = None, sort: str | None = None,
    limit: int | None = None, hidden: bool | None = None,
) -> Iterator[dict[str, Any]]:  # fmt: skip
    """Runs that match the filter, all pages of them, at most `limit`; with `hidden` also those that lists leave out."""
    return self.pages("/api/runs", "runs", limit, q=q, status=status, tag=tag, sort=sort, hidden=hidden)


def update(self: Connection, run_id: int, **changes: Any) -> dict[str, Any]:
    """Change name, tags, notes or hidden; of a queued run also queue, priority and gpu."""
    changed: dict[str, Any] = self.send("PATCH", f"/api/runs/{run_id}", changes)
    return changed


def cancel(self: Connection, run_id: int) -> dict[str, Any]:
    """A queued run ends at once, a running one within seconds."""
    changed: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/cancel")
    return changed


def resume(self: Connection, run_id: int) -> dict[str, Any]:
    """A failed, diverged or cancelled run continues after its last checkpoint. One that diverged repeats itself: see `fork`."""
    changed: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/resume")
    return changed


def clone(self: Connection, run_id: int, settings: Mapping[str, Any] | None = None, **place: Any) -> dict[str, Any]:
    """Submit the run's configuration again with values changed at dotted paths; `place`: queue, priority, gpu."""
    made: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/clone", {"set": dict(settings or {}), **place})
    return made


def fork(
    self: Connection, run_id: int, changes: Mapping[str, Any] | None = None, *, from_step: int | None = None, **place: Any
) -> dict[str, Any]:
    """Go on from a checkpoint of the run with values changed at dotted paths, to see whether it still dies.

    Without `from_step` from the last good one; without changes a replay, bit for bit. `place`: queue, priority, gpu.
    """
    body = {"changes": dict(changes or {}), **given(from_step=from_step), **place}
    made: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/fork", body)
    return made


def forks(self: Connection, run_id: int) -> list[dict[str, Any]]:
    """The forks of the run, newest first, each with its `outcome`: lives, dies or open."""
    found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/forks")["forks"]
    return found


def siblings(self: Connection, run_id: int) -> list[dict[str, Any]]:
    """Runs with the same task, model shape and steps, those that survived first, with what `differs`."""
    found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/siblings")["siblings"]
    return found


def compare(
    self: Connection,
    runs: Sequence[int] | None = None,
    *,
    sweep: int | None = None,
    q: str | None = None,
    group_by: str | None = None,
    against: str | None = None,
) -> dict[str, Any]:
    """Differences, curves and ranges of several runs; groups with finite / total and stable / total, ranked, and the differences
    of each to the group `against` (the best one without it), pair by pair."""
    named = ",".join(map(str, runs)) if runs is not None else None
    compared: dict[str, Any] = self.get("/api/compare", runs=named, sweep=sweep, q=q, group_by=group_by, against=against)
    return compared


def compare_curves(
    self: Connection,
    series: str = "train/loss",
    runs: Sequence[int] | None = None,
    *,
    sweep: int | None = None,
    q: str | None = None,
    points: int | None = None,
) -> dict[str, Any]:
    """One curve of each of several runs: train/loss or max_grad_over_weight, whose ranges by run and by map come with it."""
    named = ",".join(map(str, runs)) if runs is not None else None
    found: dict[str, Any] = self.get("/api/compare/curves", series=series, runs=named, sweep=sweep, q=q, points=points)
    return found


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
