"""Rows as the JSON that the API answers with and the pages are rendered from: one shape for both."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from server.jobs import LEASE_SECONDS
from server.models import AlertRow, Run, Sweep, Worker
from server.queues import QueueState, all_queues, misfit, queue_states, serves

RUN_FIELDS = (
    "id", "name", "tags", "notes", "status", "status_reason", "config", "sweep_id", "cloned_from", "submitted_by", "queue",
    "priority", "created_at", "started_at", "finished_at", "attempt", "cancel_requested", "seq", "step", "steps_per_second",
    "environment", "result", "divergence",
)  # fmt: skip
ALERT_FIELDS = (
    "id", "run_id", "seq", "attempt", "kind", "severity", "step", "series", "layer", "eigenvalue", "tensor", "value", "message",
    "created_at",
)  # fmt: skip


def run_answers(session: Session, runs: Sequence[Run]) -> list[dict[str, Any]]:
    """RunAnswer of each run."""
    ids = [run.id for run in runs]
    counted = select(AlertRow.run_id, func.count()).where(AlertRow.run_id.in_(ids)).group_by(AlertRow.run_id)
    alerts = dict(session.execute(counted).all()) if ids else {}
    queued = [run for run in runs if run.status == "queued"]
    workers = alive_workers(session) if queued else []
    queues = queue_states(session) if queued else {}
    return [_run_answer(run) | {"alerts": alerts.get(run.id, 0), "waits_for": waits_for(run, workers, queues)} for run in runs]


def run_answer(session: Session, run: Run) -> dict[str, Any]:
    return run_answers(session, [run])[0]


def _run_answer(run: Run) -> dict[str, Any]:
    steps = int(run.config["train"]["steps"])
    return {name: getattr(run, name) for name in RUN_FIELDS} | {
        "url": f"/runs/{run.id}",
        "gpu": run.needs_gpu,
        "worker": run.owner,
        "steps": steps,
        "progress": min(run.step / steps, 1.0),
        "eta_seconds": eta_seconds(run, run.step) if run.status == "running" else None,
    }


def eta_seconds(run: Run, step: int) -> float | None:
    """Seconds from `step` to the run's end at its present speed."""
    rate = run.steps_per_second
    return max(0.0, (run.config["train"]["steps"] - step) / rate) if rate else None


def alert_answer(alert: AlertRow) -> dict[str, Any]:
    return {name: getattr(alert, name) for name in ALERT_FIELDS}


def sweep_answer(session: Session, sweep: Sweep) -> dict[str, Any]:
    runs = run_answers(session, session.scalars(select(Run).where(Run.sweep_id == sweep.id).order_by(Run.id)).all())
    statuses: dict[str, int] = {}
    for run in runs:
        statuses[run["status"]] = statuses.get(run["status"], 0) + 1
    return {
        "id": sweep.id,
        "url": f"/sweeps/{sweep.id}",
        "base": sweep.base,
        "grid": sweep.grid,
        "created_at": sweep.created_at,
        "statuses": statuses,
        "runs": runs,
    }


def worker_answers(session: Session) -> list[dict[str, Any]]:
    """WorkerAnswer of every known worker, the newest first."""
    training: dict[str, list[int]] = {}
    for run_id, owner in session.execute(select(Run.id, Run.owner).where(Run.status == "running").order_by(Run.id)):
        training.setdefault(owner or "", []).append(run_id)
    now = time.time()
    return [
        {
            "id": worker.id,
            "host": worker.host,
            "slots": worker.slots,
            "capabilities": worker.capabilities,
            "started_at": worker.started_at,
            "seen_at": worker.seen_at,
            "alive": now - worker.seen_at < LEASE_SECONDS,
            "runs": training.get(worker.id, []),
        }
        for worker in session.scalars(select(Worker).order_by(Worker.started_at.desc()))
    ]


def alive_workers(session: Session) -> list[Worker]:
    return list(session.scalars(select(Worker).where(Worker.seen_at > time.time() - LEASE_SECONDS)))


def queue_answers(session: Session) -> list[dict[str, Any]]:
    """QueueAnswer of every queue."""
    workers = alive_workers(session)
    return [
        asdict(state) | {"workers": sum(serves(worker.capabilities, state.name) for worker in workers)}
        for state in all_queues(session, workers)
    ]


def waits_for(run: Run, workers: Sequence[Worker], queues: Mapping[str, QueueState]) -> str | None:
    """What a queued run waits for, in words."""
    if run.status != "queued":
        return None
    if not workers:
        return "a worker: none is known yet"
    workers = [worker for worker in workers if has_reported(worker)]
    if not workers:
        return "a worker that is still starting"
    if not any(serves(worker.capabilities, run.queue) for worker in workers):
        return f"a worker: none serves queue {run.queue!r}"
    workers = [worker for worker in workers if serves(worker.capabilities, run.queue)]
    reasons = [unsuitable(run, worker) for worker in workers]
    if None not in reasons:
        return f"a worker that can train it; {workers[0].host}: {reasons[0]}"
    if run.queue in queues and (obstacle := queues[run.queue].obstacle):
        return f"its queue: {run.queue!r} {obstacle}"
    return "a free worker"


def has_reported(worker: Worker) -> bool:
    """Whether the worker has said what it can do; while its training processes start it has not."""
    return bool(worker.capabilities.get("devices"))


def unsuitable(run: Run, worker: Worker) -> str | None:
    """Why this worker cannot train the run, None if it can."""
    return misfit(
        worker.capabilities, needs_cuda=run.needs_cuda, needs_data=run.needs_data, queue=run.queue, needs_gpu=run.needs_gpu
    )
