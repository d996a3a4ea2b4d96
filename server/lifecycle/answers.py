"""The JSON of runs, alerts, workers and queues, which the API sends and from which the pages are rendered."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pydantic_core import to_json
from sqlalchemy import ColumnElement, Row, Text, and_, bindparam, case, cast, select
from sqlalchemy.orm import Session

from server.database.models import NOT_IN_TRASH, AlertRow, Run, Worker
from server.lifecycle.queues import QueueState, all_queues, queue_states, serves, why_not, why_quarantined
from server.lifecycle.quotas import full_users
from server.lifecycle.run_fields import ANSWERED
from server.series.forms import CONFIGURED, forms_json_text
from server.series.last_values import read_last_values
from stablessm_core.spec.layers import starts_unstable
from stablessm_core.telemetry.how import how_of

_RUN, _ALERT = Run.__table__.c, AlertRow.__table__.c
_JSON = tuple(field.name for field in ANSWERED if field.is_json)
# The answer contains the database's JSON text unchanged: parsing 50 configurations and encoding them again would take longer
# than all other work for a page of the list.
_PLAIN = {field.name: field.sql for field in ANSWERED if field.sql is not None and not field.is_json}
RUN_COLUMNS: tuple[ColumnElement[Any], ...] = (
    *(sql if sql is _RUN.get(name) else sql.label(name) for name, sql in _PLAIN.items()),
    *(cast(_RUN[name], Text).label(name) for name in _JSON),
    case((_RUN.forms.is_(None), cast(CONFIGURED, Text))).label("configured"),
    *(_RUN[name] for name in ("needs_cuda", "needs_data", "needs_gpu", "needs_task")),
)
_RUNS = select(*RUN_COLUMNS)
_BY_NUMBER = _RUNS.where(_RUN.id == bindparam("run"), NOT_IN_TRASH)
TRAINING = and_(Run.status == "running", Run.kind == "trained")  # a worker trains the run
ALERT_FIELDS = (
    "id", "run_id", "seq", "attempt", "kind", "severity", "step", "series", "layer", "eigenvalue", "tensor", "value", "message",
    "created_at",
)  # fmt: skip
ALERTS = select(*(_ALERT[name] for name in ALERT_FIELDS))


def run_row(session: Session, run_id: int) -> Row[Any] | None:
    """The RUN_COLUMNS of a run, in one query; None if there is no such run."""
    return session.execute(_BY_NUMBER, {"run": run_id}).one_or_none()


def run_rows(session: Session, *conditions: ColumnElement[bool], most: int | None = None) -> Sequence[Row[Any]]:
    """The RUN_COLUMNS of the runs that meet the conditions, oldest first; at most `most`."""
    return session.execute(_RUNS.where(NOT_IN_TRASH, *conditions).order_by(_RUN.id).limit(most)).all()


def runs_json(
    session: Session, rows: Sequence[Row[Any]], lease_seconds: float, metrics: Sequence[str] | None = ()
) -> list[dict[str, Any]]:
    """The RunAnswer of each row of RUN_COLUMNS. metrics: the scalars whose newest values it contains; None: all of them."""
    return [
        facts | {name: None if text is None else json.loads(text) for name, text in texts.items()}
        for facts, texts in _parts(session, rows, lease_seconds, metrics)
    ]


def runs_json_bytes(
    session: Session, rows: Sequence[Row[Any]], lease_seconds: float, metrics: Sequence[str] | None = ()
) -> list[bytes]:
    """The result of `runs_json`, each as JSON text."""
    return [
        to_json(facts, inf_nan_mode="strings")[:-1]
        + "".join([f',"{name}":{"null" if text is None else text}' for name, text in texts.items()]).encode()
        + b"}"
        for facts, texts in _parts(session, rows, lease_seconds, metrics)
    ]


def _parts(
    session: Session, rows: Sequence[Row[Any]], lease_seconds: float, metrics: Sequence[str] | None
) -> Iterator[tuple[dict[str, Any], dict[str, str | None]]]:
    """Two parts of each run's answer: the plain values, and the values that the database already stores as JSON text."""
    queued = any(row.status == "queued" for row in rows)
    workers = alive_workers(session, lease_seconds) if queued else []
    queues = queue_states(session) if queued else {}
    full = full_users(session) if queued else {}
    newest = read_last_values(session, [row.id for row in rows], metrics)
    for row in rows:
        facts: dict[str, Any] = dict(zip(_PLAIN, row, strict=False))
        steps, step, rate = facts["steps"], facts["step"], facts["steps_per_second"]
        facts["url"] = f"/runs/{facts['id']}"
        facts["progress"] = None if steps is None else min(step / steps, 1.0)
        facts["eta_seconds"] = _eta(steps, step, rate) if facts["status"] == "running" else None
        facts["metrics"] = newest.get(row.id, {})
        facts["waits_for"] = waits_for(row, workers, queues, full)
        texts = dict(zip(_JSON, row[len(_PLAIN) :], strict=False))
        config = texts["config"] or ""
        facts["unstable_start"] = '"real_start"' in config and starts_unstable(json.loads(config))
        texts["forms"] = forms_json_text(texts["forms"], row.configured)
        yield facts, texts


def eta_seconds(run: Run, step: int) -> float | None:
    """Seconds from `step` until the end of the run at its current speed; None if the speed or the total is unknown."""
    return _eta(how_of(run).total_steps, step, run.steps_per_second)


def _eta(steps: int | None, step: int, rate: float | None) -> float | None:
    return max(0.0, (steps - step) / rate) if rate and steps is not None else None


def alert_json(alert: AlertRow) -> dict[str, Any]:
    return {name: getattr(alert, name) for name in ALERT_FIELDS}


def workers_json(session: Session, lease_seconds: float) -> list[dict[str, Any]]:
    """The WorkerAnswer of every known worker, newest first."""
    training: dict[str, list[int]] = {}
    for run_id, owner in session.execute(select(Run.id, Run.owner).where(TRAINING).order_by(Run.id)):
        training.setdefault(owner or "", []).append(run_id)
    now = time.time()
    return [
        {
            "id": worker.id,
            "host": worker.host,
            "slots": worker.slots,
            "capabilities": {name: value for name, value in worker.capabilities.items() if name != "quarantine"},
            "quarantine": worker.capabilities.get("quarantine"),
            "started_at": worker.started_at,
            "seen_at": worker.seen_at,
            "alive": now - worker.seen_at < lease_seconds,
            "runs": training.get(worker.id, []),
        }
        for worker in session.scalars(select(Worker).order_by(Worker.started_at.desc()))
    ]


def alive_workers(session: Session, lease_seconds: float) -> list[Worker]:
    """The workers whose last heartbeat is within the lease time, by the wall clock. Leases do not depend on this result."""
    return list(session.scalars(select(Worker).where(Worker.seen_at > time.time() - lease_seconds)))


def queues_json(session: Session, lease_seconds: float) -> list[dict[str, Any]]:
    """The QueueAnswer of every queue."""
    workers = alive_workers(session, lease_seconds)
    return [
        asdict(state) | {"workers": sum(serves(worker.capabilities, state.name) for worker in workers)}
        for state in all_queues(session, workers)
    ]


def waits_for(
    run: Run | Row[Any], workers: Sequence[Worker], queues: Mapping[str, QueueState], full: Mapping[int, int]
) -> str | None:
    """What a queued run waits for, in words; None if the run is not queued. full: from `full_users`."""
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
    reasons = [why_not(worker.capabilities, run) or why_quarantined(worker.capabilities) for worker in workers]
    if None not in reasons:
        return f"a worker that can train it; {workers[0].host}: {reasons[0]}"
    if run.queue in queues and (obstacle := queues[run.queue].obstacle):
        return f"its queue: {run.queue!r} {obstacle}"
    if run.user_id is not None and run.user_id in full:
        return f"other runs of the same user, who may run {full[run.user_id]} at once"
    return "a free worker"


def has_reported(worker: Worker) -> bool:
    """True if the worker has reported its capabilities. A worker reports them when its training processes have started."""
    return bool(worker.capabilities.get("devices"))
