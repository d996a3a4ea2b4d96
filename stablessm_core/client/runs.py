"""Requests about single runs: submit, find, change, stop and delete runs, and read their history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from stablessm_core.client.connection import PAGE, Connection, without_none
from stablessm_core.spec.config import RunConfig


class RunMethods(Connection):
    """Methods of `Client` for one run."""

    def submit(
        self, config: RunConfig | Mapping[str, Any], *, key: str | None = None, queue: str | None = None,
        priority: int | None = None, gpu: str | None = None, project: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Queue a run. Repeated calls with the same `key` and configuration submit only one run."""
        body = config.model_dump(mode="json") if isinstance(config, RunConfig) else dict(config)
        body |= without_none(project=project)
        headers, params = {"Idempotency-Key": key} if key else {}, without_none(queue=queue, priority=priority, gpu=gpu)
        made: dict[str, Any] = self.send("POST", "/api/runs", body, headers=headers, params=params)
        return made

    def run(self, run_id: int) -> dict[str, Any]:
        """The run: configuration, status, result, divergence, environment."""
        found: dict[str, Any] = self.get(f"/api/runs/{run_id}")
        return found

    def runs(
        self, q: str | None = None, *, status: str | None = None, tag: str | None = None, sort: str | None = None,
        limit: int | None = None, hidden: bool | None = None,
    ) -> Iterator[dict[str, Any]]:  # fmt: skip
        """At most `limit` runs that match the filter, from all pages. If `hidden` is true, hidden runs are included."""
        return self.pages("/api/runs", "runs", limit, q=q, status=status, tag=tag, sort=sort, hidden=hidden)

    def update(self, run_id: int, **changes: Any) -> dict[str, Any]:
        """Change `name`, `tags`, `notes`, `project` or `hidden`, or, if the run is queued, `queue`, `priority` or `gpu`."""
        changed: dict[str, Any] = self.send("PATCH", f"/api/runs/{run_id}", changes)
        return changed

    def cancel(self, run_id: int) -> dict[str, Any]:
        """Cancel the run. A queued run ends at once, a running run within seconds."""
        changed: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/cancel")
        return changed

    def resume(self, run_id: int) -> dict[str, Any]:
        """Continue a failed, diverged or cancelled run from its last checkpoint. To change its settings, use `fork`."""
        changed: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/resume")
        return changed

    def clone(self, run_id: int, settings: Mapping[str, Any] | None = None, **placement: Any) -> dict[str, Any]:
        """Submit the run's configuration again. settings: changed values by dotted path. placement: queue, priority, gpu."""
        made: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/clone", {"set": dict(settings or {}), **placement})
        return made

    def fork(
        self, run_id: int, changes: Mapping[str, Any] | None = None, *, from_step: int | None = None, **placement: Any
    ) -> dict[str, Any]:
        """Start a new run from a checkpoint of this run, to see whether the new run also diverges.

        changes: the changed values by dotted path. Without changes, the new run repeats this run bit for bit. from_step: the
        step of the checkpoint; by default, the newest checkpoint before the trouble, or 0. placement: queue, priority, gpu.
        """
        body = {"changes": dict(changes or {}), **without_none(from_step=from_step), **placement}
        made: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/fork", body)
        return made

    def forks(self, run_id: int) -> list[dict[str, Any]]:
        """The forks of the run, newest first. `outcome` is "lives", "dies" or "open"."""
        found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/forks")["forks"]
        return found

    def siblings(self, run_id: int) -> list[dict[str, Any]]:
        """Runs with the same task, model shape and number of steps as this run. Runs that survived come first.

        `differs` contains the settings in which the sibling differs from this run.
        """
        found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/siblings")["siblings"]
        return found

    def verdict(self, run_id: int) -> dict[str, Any]:
        """Why the run ended as it did: `cause`, `summary`, `events`, `evidence`, `try`.

        While the run trains, the verdict describes the training so far.
        """
        found: dict[str, Any] = self.get(f"/api/runs/{run_id}/verdict")
        return found

    def autopsy(self, run_id: int) -> dict[str, Any]:
        """The autopsy of the run: `state` (none, off, queued, running, done, failed), `reason`, and the findings.

        The findings are null until the state is "done". Numbers that are not finite are the strings "NaN", "Infinity" and
        "-Infinity".
        """
        found: dict[str, Any] = self.get(f"/api/runs/{run_id}/autopsy")
        return found

    def request_autopsy(self, run_id: int, step: int | None = None) -> dict[str, Any]:
        """Queue the autopsy of an ended run, in place of an earlier one.

        step: the step to train again with instruments; by default, the step at which a number became NaN or infinite.
        """
        asked: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/autopsy", without_none(step=step))
        return asked

    def alerts(
        self,
        run_id: int | None = None,
        *,
        since: int = 0,
        severity: str | None = None,
        q: str | None = None,
        limit: int | None = None,
    ) -> Iterator[dict[str, Any]]:
        """At most `limit` alerts with an id above `since`, of one run (oldest first) or of all runs (newest first).

        `severity` and `q` (a filter for runs) are used only if `run_id` is None.
        """
        if run_id is None:
            return self.pages("/api/alerts", "alerts", limit, since=since, severity=severity, q=q)
        return self._alerts_of_run(run_id, since, limit)

    def _alerts_of_run(self, run_id: int, since: int, left: int | None) -> Iterator[dict[str, Any]]:
        while left is None or left > 0:
            size = PAGE if left is None else min(left, PAGE)
            found = self.get(f"/api/runs/{run_id}/alerts", since=since, limit=size)["alerts"]
            yield from found
            if len(found) < size:
                return
            left, since = None if left is None else left - len(found), found[-1]["id"]

    def log(self, run_id: int, *, after: int = 0) -> dict[str, Any]:
        """The output of the training processes: `pieces` and `tracebacks`.

        after: the field `next` of an earlier response; only output written after that response is returned.
        """
        found: dict[str, Any] = self.get(f"/api/runs/{run_id}/log", after=after)
        return found

    def history(self, run_id: int, *, since: int = 0) -> dict[str, Any]:
        """The history of the run.

        `events` contains every change of status after the event `since`, with the reason for the change. `attempts` contains
        every attempt to train the run, with the host and the outcome of the attempt.
        """
        found: dict[str, Any] = self.get(f"/api/runs/{run_id}/history", since=since)
        return found

    def checkpoints(self, run_id: int) -> list[dict[str, Any]]:
        """Checkpoints that the run can resume from, newest first. `available` is true if the server can send the file."""
        found: list[dict[str, Any]] = self.get(f"/api/runs/{run_id}/checkpoints")["checkpoints"]
        return found

    def download_checkpoint(self, run_id: int, step: int, path: Path) -> Path:
        """Write a checkpoint to the file `path`, which appears only once it is complete.

        Raises ValueError if the data were damaged in transit.
        """
        return self._save(f"/api/runs/{run_id}/checkpoints/{step}", path, check_etag=True)

    def delete(self, run_id: int) -> None:
        """Move an ended run to the trash."""
        self.send("DELETE", f"/api/runs/{run_id}")

    def undelete(self, run_id: int) -> dict[str, Any]:
        """Restore a run from the trash."""
        restored: dict[str, Any] = self.send("POST", f"/api/runs/{run_id}/restore")
        return restored

    def delete_for_good(self, run_id: int) -> None:
        """Delete a run in the trash permanently. This cannot be undone."""
        self.send("DELETE", f"/api/trash/{run_id}")

    def trash(self, *, limit: int | None = None) -> Iterator[dict[str, Any]]:
        """At most `limit` runs in the trash, most recently deleted first."""
        return self.pages("/api/trash", "runs", limit)

    def occupied(self) -> dict[str, Any]:
        """Disk usage. `kept` and `trash` contain the number of runs and their total size.

        `hours` is the time that a deleted run stays in the trash.
        """
        found: dict[str, Any] = self.get("/api/trash", limit=1)
        return {name: found[name] for name in ("hours", "kept", "trash")}
