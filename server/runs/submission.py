"""Taking work in: is the configuration something that can be trained here, and the runs it becomes."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import and_, func, or_, select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.models import Run, Sweep, Worker
from server.errors import Conflict, Invalid, TooMany
from server.runs.answers import alive_workers, has_reported
from server.runs.lifecycle import Fork, NotAllowed, new_sweep, submit
from server.runs.queues import DEFAULT_QUEUE, misfit, serves
from server.runs.quotas import check_quota
from server.runs.worker_wakeups import wake_workers
from server.settings import Settings
from stablessm_core.config import ConfigError, RunConfig, parse_config, with_settings
from stablessm_core.tasks.registry import TASKS

MAX_GRID_RUNS = 500


def submit_run(
    database: Database, settings: Settings, config: RunConfig, *, key: str | None = None, cloned_from: int | None = None,
    fork: Fork | None = None, submitted_by: int | None = None, user_id: int | None = None,
    place: Mapping[str, Any] | None = None,
) -> tuple[Run, bool]:  # fmt: skip
    """The queued run and whether it is new. `place`: its queue, priority, needs_gpu, as jobs.submit takes them.

    Raises Invalid if nobody here can train it, Conflict if `key` means another run, TooMany if too many wait already.
    """
    with database.read() as session:
        check_room(session, settings, 1, user_id)
        workers = alive_workers(session, settings.lease_seconds)
    check_trainable(config, workers, database, settings, queue=_queue(place))
    try:
        with database.write() as session:
            known = key and _known_key(session, key, submitted_by, user_id, _queue(place))
            stored = known or (key and _stored_key(key, submitted_by, user_id, _queue(place)))
            run = submit(
                session, config, idempotency_key=stored, cloned_from=cloned_from, fork=fork, submitted_by=submitted_by,
                user_id=user_id, **place or {},
            )  # fmt: skip
    except NotAllowed as error:
        raise Conflict(f"{key!r}: {error}", field="Idempotency-Key", allowed="the same body, or a new key") from None
    if not known:
        wake_workers(settings.broker_url)
    return run, not known


def _stored_key(key: str, submitted_by: int | None, user_id: int | None, queue: str) -> str:
    """What the row keeps of an idempotency key: with another token or user, or for another queue, the same key is another."""
    return "sha256:" + hashlib.sha256(json.dumps([submitted_by, user_id, queue, key]).encode()).hexdigest()


def _known_key(session: Session, key: str, submitted_by: int | None, user_id: int | None, queue: str) -> str | None:
    """The key as the row of an earlier submission has it; None if this is the first. Older servers stored it as it came."""
    as_it_came = and_(Run.idempotency_key == key, Run.submitted_by.is_not_distinct_from(submitted_by), Run.queue == queue)
    same = or_(Run.idempotency_key == _stored_key(key, submitted_by, user_id, queue), as_it_came)
    return session.scalar(select(Run.idempotency_key).where(same).limit(1))


def submit_sweep(
    database: Database, settings: Settings, base: dict[str, Any], grid: dict[str, list[Any]], *, name: str | None = None,
    submitted_by: int | None = None, user_id: int | None = None, place: Mapping[str, Any] | None = None,
) -> int:  # fmt: skip
    """Id of a new sweep whose runs are queued, all or none."""
    configs = [_named(config, setting) for setting, config in expand(base, grid)]
    with database.read() as session:
        check_room(session, settings, len(configs), user_id)
        workers = alive_workers(session, settings.lease_seconds)
    for config in configs:
        check_trainable(config, workers, database, settings, queue=_queue(place))
    with database.write() as session:
        sweep: Sweep = new_sweep(session, base, grid, name=name, submitted_by=submitted_by)
        for config in configs:
            submit(session, config, sweep_id=sweep.id, submitted_by=submitted_by, user_id=user_id, **place or {})
        sweep_id = sweep.id
    for _ in configs[:8]:
        wake_workers(settings.broker_url)
    return sweep_id


def expand(base: dict[str, Any], grid: dict[str, list[Any]]) -> Iterator[tuple[dict[str, Any], RunConfig]]:
    """Every combination of the grid as (what it sets, configuration). Raises Invalid before anything is stored."""
    size = 1
    for path, values in grid.items():
        if not values:
            raise Invalid(f"grid.{path} has no values", field=f"grid.{path}", allowed="a list of at least one value")
        size *= len(values)
    if size > MAX_GRID_RUNS:
        raise Invalid(f"the grid has {size:,} combinations", field="grid", allowed=f"at most {MAX_GRID_RUNS} combinations")
    for combination in itertools.product(*grid.values()):
        setting = dict(zip(grid, combination, strict=True))
        try:
            yield setting, parse_config(with_settings(base, setting))
        except ConfigError as error:
            field, message, allowed = error.problems[0]
            given = ", ".join(f"{path}={value!r}" for path, value in setting.items())[:300]
            raise Invalid(
                f"{field}: {message} (with {given})", field=f"grid.{field}" if field in grid else field, allowed=allowed
            ) from None


def check_room(session: Session, settings: Settings, count: int, user_id: int | None) -> None:
    """Raises TooMany, Invalid when `count` more runs would be more than the installation, or the user's quota, allows."""
    check_quota(session, user_id, count)
    waiting = session.scalar(select(func.count()).select_from(Run).where(Run.status == "queued")) or 0
    if waiting + count > settings.max_queued:
        raise TooMany(
            f"{waiting:,} runs wait already", field="queue", allowed=f"at most {settings.max_queued:,} (STABLESSM_MAX_QUEUED)",
            headers={"Retry-After": "60"},
        )  # fmt: skip


def check_trainable(
    config: RunConfig, workers: Sequence[Worker], database: Database, settings: Settings, *, queue: str
) -> None:  # fmt: skip
    """Raises Invalid when every worker of this queue lacks what the run needs, or its data is missing or damaged on this machine.

    A run may be queued before any worker of its queue is started: nobody is asked then, and its page says what it waits for.
    A SQLite database is only reached from this machine, so its workers read the very files the server can look at.
    """
    if database.path is not None:
        from stablessm_core.tasks.requirements import task_problem  # torch-free, and only needed here

        problem = task_problem(config.task, settings.data_root)
        if problem is not None:
            field = f"task.{config.task.data_field}"
            problem = problem.replace(str(settings.data_root), "STABLESSM_DATA")  # where that is concerns nobody outside
            raise Invalid(problem, field=field, allowed="data that is there and whole (STABLESSM_DATA says where it lies)")
    workers = [worker for worker in workers if has_reported(worker) and serves(worker.capabilities, queue)]
    needs_task, needs_data, needs_cuda = config.task.name, config.task.data_needed(), config.train.device == "cuda"
    tasks = sorted({str(t) for worker in workers for t in worker.capabilities.get("tasks", TASKS)})
    if workers and needs_task not in tasks:
        raise Invalid(f"no worker has the task {needs_task!r}", field="task.name", allowed=", ".join(tasks))
    lacking = [
        misfit(worker.capabilities, needs_cuda=needs_cuda, needs_data=needs_data, queue=queue, needs_task=needs_task)
        for worker in workers
    ]
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


def _queue(place: Mapping[str, Any] | None) -> str:
    return str((place or {}).get("queue", DEFAULT_QUEUE))


def _named(config: RunConfig, setting: dict[str, Any]) -> RunConfig:
    if config.name is not None and "name" in setting:
        return config
    text = " ".join(f"{path.removesuffix('.name').split('.')[-1]}={value}" for path, value in setting.items())
    name = f"{config.name} {text}" if config.name else text
    return config.model_copy(update={"name": name[:200]})
