"""Submits runs: checks that this installation can train a configuration, then queues the run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import Run, Worker
from server.errors import Conflict, Invalid, TooMany
from server.lifecycle.answers import alive_workers, has_reported
from server.lifecycle.queues import DEFAULT_QUEUE, Needs, serves, why_not
from server.lifecycle.quotas import check_quota
from server.lifecycle.transitions import Fork, NotAllowed, submit
from server.lifecycle.worker_wakeups import wake_workers
from server.settings import Settings
from stablessm_core.spec.config import RunConfig
from stablessm_core.spec.tasks import TASKS


def submit_run(
    database: Database, settings: Settings, config: RunConfig, *, key: str | None = None, cloned_from: int | None = None,
    fork: Fork | None = None, submitted_by: int | None = None, user_id: int | None = None,
    queue_columns: Mapping[str, Any] | None = None, project: str = "",
) -> tuple[Run, bool]:  # fmt: skip
    """The queued run, and True if the run is new. queue_columns: the run's queue, priority and needs_gpu, as for
    `transitions.submit`.

    Raises Invalid if no worker of the queue can train the run, Conflict if `key` belongs to another run, TooMany if too many
    runs wait.
    """
    with database.read() as session:
        check_room(session, settings, 1, user_id)
        workers = alive_workers(session, settings.lease_seconds)
    check_trainable(config, workers, database, settings, queue=_queue(queue_columns))
    try:
        with database.write() as session:
            known = key and _known_key(session, key, submitted_by, user_id, _queue(queue_columns))
            stored = known or (key and _stored_key(key, submitted_by, user_id, _queue(queue_columns)))
            run = submit(
                session, config, idempotency_key=stored, cloned_from=cloned_from, fork=fork, submitted_by=submitted_by,
                user_id=user_id, project=project, **queue_columns or {},
            )  # fmt: skip
    except NotAllowed as error:
        raise Conflict(f"{key!r}: {error}", field="Idempotency-Key", allowed="the same body, or a new key") from None
    if not known:
        wake_workers(settings.broker_url)
    return run, not known


def _stored_key(key: str, submitted_by: int | None, user_id: int | None, queue: str) -> str:
    """The stored form of an idempotency key. Token, user and queue are part of this form, so equal keys of different users do
    not collide."""
    return "sha256:" + hashlib.sha256(json.dumps([submitted_by, user_id, queue, key]).encode()).hexdigest()


def _known_key(session: Session, key: str, submitted_by: int | None, user_id: int | None, queue: str) -> str | None:
    """The key as an earlier submission stored it; None if there was no such submission. Older servers stored keys unhashed."""
    unhashed = and_(Run.idempotency_key == key, Run.submitted_by.is_not_distinct_from(submitted_by), Run.queue == queue)
    same = or_(Run.idempotency_key == _stored_key(key, submitted_by, user_id, queue), unhashed)
    return session.scalar(select(Run.idempotency_key).where(same).limit(1))


def check_room(session: Session, settings: Settings, count: int, user_id: int | None) -> None:
    """Check the limits for `count` more runs. Raises TooMany or Invalid if these runs would exceed the installation's limit or
    the user's quota."""
    check_quota(session, user_id, count)
    waiting = session.scalar(select(func.count()).select_from(Run).where(Run.status == "queued")) or 0
    if waiting + count > settings.max_queued:
        raise TooMany(
            f"{waiting:,} runs are already waiting", field="queue",
            allowed=f"at most {settings.max_queued:,} (STABLESSM_MAX_QUEUED)", headers={"Retry-After": "60"},
        )  # fmt: skip


def check_trainable(
    config: RunConfig, workers: Sequence[Worker], database: Database, settings: Settings, *, queue: str
) -> None:  # fmt: skip
    """Check that the run can be trained. Raises Invalid if no worker of this queue meets all requirements of the run, or if the
    run's data is missing or damaged on this machine.

    If the queue has no worker, nothing is checked, and the run's page shows what the run waits for. Workers of a SQLite database
    run on this machine and read the same files as the server, so the server checks these files itself.
    """
    if database.path is not None:
        problem = config.task.data_problem(settings.data_root)
        if problem is not None:
            field = f"task.{config.task.data_field}"
            problem = problem.replace(str(settings.data_root), "STABLESSM_DATA")  # the message must not reveal local paths
            raise Invalid(problem, field=field, allowed="complete data in the folder that STABLESSM_DATA names")
    workers = [worker for worker in workers if has_reported(worker) and serves(worker.capabilities, queue)]
    needs_task, needs_data, needs_cuda = config.task.name, config.task.data_needed(), config.train.device == "cuda"
    tasks = sorted({str(t) for worker in workers for t in worker.capabilities.get("tasks", TASKS)})
    if workers and needs_task not in tasks:
        raise Invalid(f"no worker has the task {needs_task!r}", field="task.name", allowed=", ".join(tasks))
    needs = Needs(queue, needs_cuda, needs_data, needs_task=needs_task)
    lacking = [why_not(worker.capabilities, needs) for worker in workers]
    if lacking and None not in lacking:
        devices = sorted({str(d) for worker in workers for d in worker.capabilities.get("devices", ())})
        if needs_cuda and not any(d.startswith("cuda") for d in devices):
            raise Invalid("no worker has a CUDA device", field="train.device", allowed=", ".join(["auto", *devices]) or "auto")
        raise Invalid(f"no worker can train this: {lacking[0]}", field="task.name", allowed="a task whose data a worker has")
    backends = sorted({str(b) for worker in workers for b in worker.capabilities.get("backends", ())})
    if backends and config.train.scan_backend not in ("auto", *backends):
        raise Invalid(
            f"no worker has the scan backend {config.train.scan_backend!r}",
            field="train.scan_backend",
            allowed=", ".join(["auto", *backends]),
        )


def _queue(queue_columns: Mapping[str, Any] | None) -> str:
    return str((queue_columns or {}).get("queue", DEFAULT_QUEUE))
