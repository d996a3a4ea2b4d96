"""The life cycle of a run: submitting, claiming, heartbeats, ending, losing, resuming. The worker and the server use these
functions.

The database row is authoritative. A claim increments `attempt`, the fencing token of every later write. A heartbeat increments
`beat`, which server.lifecycle.lost_runs watches on its own monotonic clock. Each change of status is a `Transition` with the
run's next `seq`. All functions work inside the caller's `Database.write()` transaction; the caller wakes the workers only after
the commit.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from server.database.fence import LeaseLost, add_transition, fence, insert_into, lock_run
from server.database.models import CheckpointRow, Run, Sweep, Worker
from server.lifecycle.autopsies import forget_autopsy, queue_autopsy
from server.lifecycle.queues import DEFAULT_QUEUE, lock_next
from server.lifecycle.reported import REPORTED, check_trained, describe_end
from server.series.alerts import insert_alerts
from server.series.recording import delete_steps
from stablessm_core.spec.config import RunConfig, parse_config
from stablessm_core.spec.errors import ConfigError
from stablessm_core.telemetry.detectors import AlertKind
from stablessm_core.telemetry.statuses import FINAL, OPEN, RESUMABLE

MAX_LOSSES = 3  # after this many lost attempts without a new checkpoint, the run itself is assumed to be the cause
WORKER_FORGOTTEN_SECONDS = 86_400.0
ENDED = {  # the default reason for each final status
    "finished": "every training step is done",
    "diverged": "a number became NaN or infinite",
    "failed": "the worker gave no reason",
    "cancelled": "cancelled",
}
STOPPED = "stopped by the search"  # the reasons for which a search stops a run begin with this
REPEATS = "a diverged run repeats the same numbers after its checkpoint and diverges again; fork it to change something"


class NotAllowed(ValueError):
    """The run's status does not allow this action; the message names the statuses that allow it."""


@dataclass(frozen=True)
class StoredCheckpoint:
    """A stored checkpoint. `path` is relative to the data directory."""

    step: int
    path: str
    sha256: str


@dataclass(frozen=True)
class Fork:
    """The start of a fork: after `step` of run `parent`; step 0 means the parent's initial weights. `changes`: by dotted
    path."""

    parent: int
    step: int
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Origin:
    """The checkpoint of run `parent` from which a fork starts; `checkpoint` is None if the database has no record of it."""

    parent: int
    step: int
    checkpoint: StoredCheckpoint | None


@dataclass(frozen=True)
class Claim:
    """A run that this worker trains, with the attempt number that every write needs.

    checkpoints: newest first. origin: the checkpoint that a fork starts from; None if the fork starts from the initial weights.
    """

    run_id: int
    attempt: int
    config: dict[str, Any]
    checkpoints: tuple[StoredCheckpoint, ...]
    origin: Origin | None = None

    @property
    def checkpoint(self) -> StoredCheckpoint | None:
        return self.checkpoints[0] if self.checkpoints else None


def submit(
    session: Session,
    config: RunConfig,
    *,
    idempotency_key: str | None = None,
    sweep_id: int | None = None,
    cloned_from: int | None = None,
    fork: Fork | None = None,
    submitted_by: int | None = None,
    user_id: int | None = None,
    queue: str = DEFAULT_QUEUE,
    priority: int = 0,
    needs_gpu: str = "",
    project: str = "",
) -> Run:
    """A new queued run, or the run that was created earlier with this idempotency key. Raises NotAllowed if their configurations
    differ."""
    values: dict[str, Any] = run_values(
        config, submitted_by=submitted_by, user_id=user_id, queue=queue, priority=priority, needs_gpu=needs_gpu, project=project
    )
    values |= {"sweep_id": sweep_id, "cloned_from": cloned_from, "idempotency_key": idempotency_key, "created_at": time.time()}
    if fork is not None:
        values |= {"forked_from": fork.parent, "forked_at_step": fork.step, "fork_changes": dict(fork.changes), "step": fork.step}
    statement = insert_into(session, Run).values(values).on_conflict_do_nothing(index_elements=["idempotency_key"])
    new = session.execute(statement.returning(Run.id)).scalar_one_or_none()
    run = session.scalars(select(Run).where(Run.id == new if new is not None else Run.idempotency_key == idempotency_key)).one()
    if new is not None:
        add_transition(session, run, "submitted" if fork is None else f"forked from run {fork.parent} at step {fork.step}")
    elif run.deleted_at is not None:
        raise NotAllowed(f"this idempotency key belongs to run {run.id}, which is in the trash")
    elif _with_new_fields(run.config) != values["config"]:
        raise NotAllowed(f"this idempotency key belongs to run {run.id}, which is configured differently")
    return run


def run_values(
    config: RunConfig, *, submitted_by: int | None, user_id: int | None, queue: str = DEFAULT_QUEUE, priority: int = 0,
    needs_gpu: str = "", project: str = "",
) -> dict[str, Any]:  # fmt: skip
    """The columns of a new run that follow from its configuration, its submitter and its place in the queue."""
    return {
        "name": config.name,
        "tags": list(config.tags),
        "project": project,
        "config": config.model_dump(mode="json"),
        "submitted_by": submitted_by,
        "user_id": user_id,
        "queue": queue,
        "priority": priority,
        "needs_gpu": needs_gpu,
        "needs_cuda": config.train.device == "cuda",
        "needs_data": config.task.data_needed(),
        "needs_task": config.task.name,
    }


def _with_new_fields(config: dict[str, Any]) -> dict[str, Any]:
    """The configuration, completed with fields that did not exist when the configuration was stored."""
    try:
        return parse_config(config).model_dump(mode="json")
    except ConfigError:
        return config


def new_sweep(
    session: Session, base: dict[str, Any], grid: dict[str, Any], *, name: str | None = None, submitted_by: int | None = None
) -> Sweep:
    """The row of a new sweep. Its runs are submitted with `sweep_id`."""
    sweep = Sweep(base=base, grid=grid, name=name, submitted_by=submitted_by, created_at=time.time())
    session.add(sweep)
    session.flush()
    return sweep


def claim(session: Session, owner: str, capabilities: Mapping[str, Any]) -> Claim | None:
    """Take the next run for a worker with these capabilities (see server.lifecycle.queues); None if there is no such run.

    The run continues after its newest checkpoint. A fork without a checkpoint of its own continues after the step at
    which it was forked. Stored steps after the starting point are deleted.
    """
    run = lock_next(session, capabilities)
    if run is None:
        return None
    checkpoints: tuple[StoredCheckpoint, ...] = ()
    begin = run.forked_at_step or 0
    done, cut = begin, False
    if run.attempt:  # nothing is stored before the first attempt, because every write needs an attempt
        rows = session.scalars(select(CheckpointRow).where(CheckpointRow.run_id == run.id).order_by(CheckpointRow.step.desc()))
        checkpoints = tuple(StoredCheckpoint(row.step, row.path, row.sha256) for row in rows)
        done = checkpoints[0].step if checkpoints else begin
        cut = delete_steps(session, run.id, done + 1)
        forget_autopsy(session, run.id)  # an older server that resumed the run did not delete it
    run.status, run.owner, run.attempt, run.beat, run.step = "running", owner, run.attempt + 1, 0, done
    run.started_at = run.started_at or time.time()
    run.worker, run.host = owner, owner.rsplit(":", 2)[0]  # host:pid:start
    run.gpu_name = next(iter(capabilities.get("gpus", ())), None) if run.config["train"]["device"] != "cpu" else None
    run.deleted_at = run.deleted_by = None  # an older version may have resumed a run in the trash
    run.status_reason = f"attempt {run.attempt} on {owner}" + (f", resumed after step {done}" if done > begin else "")
    add_transition(session, run, run.status_reason, truncated_from=done + 1 if cut else None)
    return Claim(run.id, run.attempt, dict(run.config), checkpoints, _origin(session, run) if begin else None)


def heartbeat(session: Session, run_id: int, attempt: int) -> bool:
    """Report that the run is alive. False means that the lease is lost; the caller must then stop writing."""
    alive = session.execute(
        update(Run)
        .where(fence(run_id, attempt))
        .values(beat=Run.beat + 1)
        .returning(Run.id)
        .execution_options(synchronize_session=False)
    ).scalar_one_or_none()
    return alive is not None


def set_environment(session: Session, run_id: int, attempt: int, environment: dict[str, Any]) -> None:
    """Store the environment in which the run trains: device, versions, backend, parameter groups. Raises LeaseLost."""
    lock_run(session, run_id, attempt).environment = environment


def finish(
    session: Session,
    run_id: int,
    attempt: int,
    status: str,
    reason: str = "",
    result: dict[str, Any] | None = None,
    divergence: dict[str, Any] | None = None,
    judged: Mapping[str, Any] | None = None,
    autopsy: bool = False,
) -> None:
    """End the run; a second call changes nothing. judged: the columns of the run's row that the verdict determines
    (server.lifecycle.verdicts). autopsy: whether a diverged run gets an autopsy (server.lifecycle.autopsies).

    Raises LeaseLost, ValueError for a status that is not final.
    """
    if status not in FINAL:
        raise ValueError(f"status is {status!r}; allowed: {', '.join(FINAL)}")
    try:
        run = lock_run(session, run_id, attempt)
    except LeaseLost:
        ended = session.get(Run, run_id)
        if ended is not None and (ended.attempt, ended.status) == (attempt, status):
            return  # the response to the first call was lost
        raise
    run.result, run.divergence = result, divergence
    for name, value in (judged or {}).items():
        setattr(run, name, value)
    _end(session, run, status, reason)
    if autopsy and status == "diverged":
        queue_autopsy(session, run)


def release(
    session: Session,
    run_id: int,
    attempt: int,
    reason: str,
    *,
    loss: AlertKind | None = None,
    alert: AlertKind | None = None,
) -> str:
    """Put the run back into the queue, to continue from its last checkpoint, and return its new status.

    loss: the kind of alert, if the attempt was lost with its worker or its training process. The alert is stored with `reason`,
    and after MAX_LOSSES such losses the run is `failed`. If a cancellation was requested, the run is `cancelled` instead.
    alert: the kind of alert, if the run is not to blame for its return, so that no loss is counted. Raises LeaseLost.
    """
    run = lock_run(session, run_id, attempt)
    if loss is not None:
        run.workers_lost += 1
    if (kind := loss or alert) is not None:
        raised = kind.alert(step=run.step, message=reason)
        insert_alerts(session, run.id, run.attempt, [raised], run.seq + 1)  # same event number as the transition below
    if run.cancel_requested:
        _end(session, run, "cancelled", reason)
    elif run.workers_lost >= MAX_LOSSES:
        _end(session, run, "failed", f"{reason} ({run.workers_lost} attempts lost without a new checkpoint)")
    else:
        _requeue(session, run, reason)
    return run.status


def request_cancel(session: Session, run_id: int, reason: str = "") -> Run:
    """Cancel a queued run at once, or request that a running run stops; its worker checks for the request every 0.25 s. Raises
    LookupError, NotAllowed.

    reason: why a search stops the run; it begins with STOPPED and becomes the reason of the run's final status.
    """
    run = _get(session, run_id)
    if run.status == "queued":
        _end(session, run, "cancelled", reason or "cancelled while queued")
    elif run.status != "running":
        raise NotAllowed(f"run {run_id} is {run.status}; only queued and running runs can be cancelled")
    elif not run.cancel_requested:
        run.cancel_requested = True
        if reason:
            run.status_reason = reason
        add_transition(session, run, reason or "cancel requested")
    return run


def cancel_sweep(session: Session, sweep_id: int) -> None:
    """Cancel every queued or running run of the sweep."""
    # cancel queued runs first; otherwise a queued run would start as soon as a running run ends
    open_runs = select(Run.id).where(Run.sweep_id == sweep_id, Run.status.in_(OPEN))
    for run_id in session.scalars(open_runs.order_by(Run.status, Run.id)).all():
        try:
            request_cancel(session, run_id)
        except (NotAllowed, LookupError):
            pass  # the run has ended in the meantime


def move(session: Session, run_id: int, changes: Mapping[str, Any]) -> Run:
    """Change `queue`, `priority` or `needs_gpu` of a queued run. Raises LookupError, NotAllowed."""
    run = _get(session, run_id)
    if run.status != "queued":
        raise NotAllowed(f"run {run_id} is {run.status}; only queued runs can be moved")
    for field, value in changes.items():
        setattr(run, field, value)
    return run


def resume_run(session: Session, run_id: int) -> Run:
    """Queue an ended run again, to continue after its last checkpoint. Raises LookupError, NotAllowed."""
    run = _get(session, run_id)
    check_trained(run)
    if run.status not in RESUMABLE:
        raise NotAllowed(f"run {run_id} is {run.status}; only failed, diverged and cancelled runs can be resumed")
    if run.forked_at_step is not None and run.forked_from is None:  # the fork was imported without its parent
        raise NotAllowed(f"run {run_id} is a fork of a run that is not here, and needs a checkpoint of that run")
    reason = f"resumed; {REPEATS}" if run.status == "diverged" else "resumed"
    run.workers_lost, run.finished_at, run.result, run.divergence = 0, None, None, None
    forget_autopsy(session, run_id)
    _requeue(session, run, reason)
    return run


def register_worker(session: Session, worker_id: str, host: str, slots: int, capabilities: dict[str, Any]) -> None:
    """Store a worker with its current capabilities, and delete workers that have been silent for a day."""
    now = time.time()
    session.execute(delete(Worker).where(Worker.seen_at < now - WORKER_FORGOTTEN_SECONDS))
    session.merge(Worker(id=worker_id, host=host, slots=slots, capabilities=capabilities, beat=0, started_at=now, seen_at=now))


def beat_worker(session: Session, worker_id: str) -> bool:
    """Record a worker's heartbeat. False means that the worker is unknown and must register."""
    statement = (
        update(Worker).where(Worker.id == worker_id).values(beat=Worker.beat + 1, seen_at=time.time()).returning(Worker.id)
    )
    return session.execute(statement.execution_options(synchronize_session=False)).scalar_one_or_none() is not None


def forget_worker(session: Session, worker_id: str) -> None:
    """Delete the row of a worker that stops."""
    session.execute(delete(Worker).where(Worker.id == worker_id))


def _requeue(session: Session, run: Run, reason: str) -> None:
    run.status, run.status_reason, run.owner, run.cancel_requested = "queued", reason, None, False
    # data recorded from now on must also be merged and judged
    run.steps_per_second = run.compacted_at = run.cause = run.judged_at = None
    add_transition(session, run, reason)


def _end(session: Session, run: Run, status: str, reason: str) -> None:
    reason = reason or (describe_end(run, status) if run.kind == REPORTED else ENDED[status])
    if status == "cancelled" and run.cancel_requested and run.status_reason.startswith(STOPPED):
        reason = run.status_reason  # the worker knows only that somebody requested the cancellation
    run.status, run.status_reason, run.owner, run.finished_at = status, reason, None, time.time()
    add_transition(session, run, reason)


def _origin(session: Session, run: Run) -> Origin:
    assert run.forked_from is not None
    assert run.forked_at_step is not None
    row = session.get(CheckpointRow, (run.forked_from, run.forked_at_step))
    checkpoint = None if row is None else StoredCheckpoint(row.step, row.path, row.sha256)
    return Origin(run.forked_from, run.forked_at_step, checkpoint)


def _get(session: Session, run_id: int) -> Run:
    run = session.scalars(
        select(Run).where(Run.id == run_id).with_for_update().execution_options(populate_existing=True)
    ).one_or_none()
    if run is None or run.deleted_at is not None:
        raise LookupError(f"there is no run {run_id}" if run is None else f"run {run_id} is in the trash")
    return run
