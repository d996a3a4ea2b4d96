"""Rows as the JSON that the API answers with and the pages are rendered from: one shape for both."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json
from sqlalchemy import BigInteger, ColumnElement, Row, Text, bindparam, case, cast, func, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, AlertRow, Run, Sweep, Worker
from server.runs.queues import QueueState, all_queues, misfit, queue_states, serves
from server.runs.quotas import full_users
from server.runs.submitters import SUBMITTER
from server.series.forms import CONFIGURED, forms_json

_RUN, _ALERT = Run.__table__.c, AlertRow.__table__.c
# its own name, else that of its base configuration
SWEEP_NAME: ColumnElement[str | None] = func.coalesce(Sweep.name, Sweep.base["name"].as_string())
PLAIN_FIELDS = (
    "id", "name", "notes", "status", "status_reason", "sweep_id", "cloned_from", "submitted_by", "user_id", "queue", "priority",
    "created_at", "started_at", "finished_at", "attempt", "cancel_requested", "seq", "step", "steps_per_second",
    "bytes_stored",
    "host", "gpu_name", "largest_ratio", "largest_relative_step", "nearest_distance", "overflow_budget", "cause", "forked_from",
    "forked_at_step", "hidden",
)  # fmt: skip
# These leave the database as the text that enters the answer: taking 50 configurations apart and putting them together again
# would cost more than everything else in a page of the list.
JSON_FIELDS = ("tags", "config", "environment", "result", "divergence", "forms", "unstable", "fork_changes")
RUN_COLUMNS: tuple[ColumnElement[Any], ...] = (
    *(_RUN[name] for name in PLAIN_FIELDS),
    _RUN.needs_gpu.label("gpu"),
    func.coalesce(_RUN.owner, _RUN.worker).label("worker"),
    SUBMITTER.label("user"),
    cast(_RUN.config["train", "steps"].as_string(), BigInteger).label("steps"),
    select(func.count()).where(_ALERT.run_id == _RUN.id).correlate(Run.__table__).scalar_subquery().label("alerts"),
    select(SWEEP_NAME).where(Sweep.id == _RUN.sweep_id).correlate(Run.__table__).scalar_subquery().label("sweep_name"),
    *(cast(_RUN[name], Text).label(name) for name in JSON_FIELDS),
    case((_RUN.forms.is_(None), cast(CONFIGURED, Text))).label("configured"),
    *(_RUN[name] for name in ("needs_cuda", "needs_data", "needs_gpu", "needs_task")),
)
_FACTS = (*PLAIN_FIELDS, "gpu", "worker", "user", "steps", "alerts", "sweep_name")
_RUNS = select(*RUN_COLUMNS)
_BY_NUMBER = _RUNS.where(_RUN.id == bindparam("run"), NOT_IN_TRASH)
ALERT_FIELDS = (
    "id", "run_id", "seq", "attempt", "kind", "severity", "step", "series", "layer", "eigenvalue", "tensor", "value", "message",
    "created_at",
)  # fmt: skip
ALERTS = select(*(_ALERT[name] for name in ALERT_FIELDS))


def run_row(session: Session, run_id: int) -> Row[Any] | None:
    """The run's RUN_COLUMNS, one query."""
    return session.execute(_BY_NUMBER, {"run": run_id}).one_or_none()


def run_rows(session: Session, *conditions: ColumnElement[bool]) -> Sequence[Row[Any]]:
    """RUN_COLUMNS of the runs for which the conditions hold, oldest first."""
    return session.execute(_RUNS.where(NOT_IN_TRASH, *conditions).order_by(_RUN.id)).all()


def run_answers(session: Session, rows: Sequence[Row[Any]], lease_seconds: float) -> list[dict[str, Any]]:
    """RunAnswer of each row of RUN_COLUMNS."""
    return [
        facts | {name: None if text is None else json.loads(text) for name, text in texts.items()}
        for facts, texts in _described(session, rows, lease_seconds)
    ]


def runs_json(session: Session, rows: Sequence[Row[Any]], lease_seconds: float) -> list[bytes]:
    """The same as JSON text."""
    return [
        to_json(facts, inf_nan_mode="strings")[:-1]
        + "".join([f',"{name}":{"null" if text is None else text}' for name, text in texts.items()]).encode()
        + b"}"
        for facts, texts in _described(session, rows, lease_seconds)
    ]


def _described(
    session: Session, rows: Sequence[Row[Any]], lease_seconds: float
) -> Iterator[tuple[dict[str, Any], dict[str, str | None]]]:
    """Of each row what is not JSON in the database yet, and what is."""
    queued = any(row.status == "queued" for row in rows)
    workers = alive_workers(session, lease_seconds) if queued else []
    queues = queue_states(session) if queued else {}
    full = full_users(session) if queued else {}
    for row in rows:
        facts: dict[str, Any] = dict(zip(_FACTS, row, strict=False))
        steps, step, rate = facts["steps"], facts["step"], facts["steps_per_second"]
        facts["url"] = f"/runs/{facts['id']}"
        facts["progress"] = min(step / steps, 1.0)
        facts["eta_seconds"] = _eta(steps, step, rate) if facts["status"] == "running" else None
        facts["waits_for"] = waits_for(row, workers, queues, full)
        texts = dict(zip(JSON_FIELDS, row[len(_FACTS) :], strict=False))
        texts["forms"] = forms_json(texts["forms"], row.configured)
        yield facts, texts


def eta_seconds(run: Run, step: int) -> float | None:
    """Seconds from `step` to the run's end at its present speed."""
    return _eta(run.config["train"]["steps"], step, run.steps_per_second)


def _eta(steps: int, step: int, rate: float | None) -> float | None:
    return max(0.0, (steps - step) / rate) if rate else None


def alert_answer(alert: AlertRow) -> dict[str, Any]:
    return {name: getattr(alert, name) for name in ALERT_FIELDS}


def worker_answers(session: Session, lease_seconds: float) -> list[dict[str, Any]]:
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
            "alive": now - worker.seen_at < lease_seconds,
            "runs": training.get(worker.id, []),
        }
        for worker in session.scalars(select(Worker).order_by(Worker.started_at.desc()))
    ]


def alive_workers(session: Session, lease_seconds: float) -> list[Worker]:
    """Workers that were seen within the lease, by the wall clock: for people, nothing is decided by it."""
    return list(session.scalars(select(Worker).where(Worker.seen_at > time.time() - lease_seconds)))


def queue_answers(session: Session, lease_seconds: float) -> list[dict[str, Any]]:
    """QueueAnswer of every queue."""
    workers = alive_workers(session, lease_seconds)
    return [
        asdict(state) | {"workers": sum(serves(worker.capabilities, state.name) for worker in workers)}
        for state in all_queues(session, workers)
    ]


def waits_for(
    run: Run | Row[Any], workers: Sequence[Worker], queues: Mapping[str, QueueState], full: Mapping[int, int]
) -> str | None:
    """What a queued run waits for, in words. `full`: users whose quota of running runs is used up, each with it."""
    if run.status != "queued":
        return None
    if not workers:
        return "a worker: none is known yet"
    workers = [worker for worker in workers if serves(worker.capabilities, run.queue)]
    if not workers:
        return f"a worker: none serves queue {run.queue!r}"
    problems = [f"{worker.host} has {worker.capabilities['problem']}" for worker in workers if "problem" in worker.capabilities]
    workers = [worker for worker in workers if has_reported(worker)]
    if not workers:
        return f"a worker that can start: {problems[0]}" if problems else "a worker that is still starting"
    reasons = [unsuitable(run, worker) for worker in workers]
    if None not in reasons:
        return f"a worker that can train it; {workers[0].host}: {reasons[0]}"
    if run.queue in queues and (obstacle := queues[run.queue].obstacle):
        return f"its queue: {run.queue!r} {obstacle}"
    if run.user_id is not None and run.user_id in full:
        return f"other runs of the same user, who may have {full[run.user_id]} running"
    return "a free worker"


def has_reported(worker: Worker) -> bool:
    """Whether the worker has said what it can do; while its training processes start it has not."""
    return bool(worker.capabilities.get("devices"))


def unsuitable(run: Run | Row[Any], worker: Worker) -> str | None:
    """Why this worker cannot train the run, None if it can."""
    return misfit(
        worker.capabilities, needs_cuda=run.needs_cuda, needs_data=run.needs_data, queue=run.queue, needs_gpu=run.needs_gpu,
        needs_task=run.needs_task,
    )  # fmt: skip
