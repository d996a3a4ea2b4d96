"""Chooses the queued run that starts next, and describes the queues: their workers, their limits, and whether they are paused.

Runs with the highest priority come first. Among these runs, a run whose submitter has the fewest running runs in the queue
comes first. Among the remaining runs, the oldest comes first. A submitter is a user, or a token that names no user. A user's
quota of running runs applies to all queues together. No run waits forever: while some run has waited longer than
PATIENCE_SECONDS, a fraction PATIENT_SHARE of the claims takes the oldest run, whatever its priority.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sqlalchemy import BigInteger, Row, bindparam, case, func, literal_column, select, text, tuple_
from sqlalchemy.orm import Session

from server.database.fence import insert_into
from server.database.models import Queue, Run, Transition, User, Worker

DEFAULT_QUEUE = "default"
QUEUE_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
MAX_NAME = 60
PATIENCE_SECONDS = 3600.0
PATIENT_SHARE = 1 / 8

# Literals are used instead of parameters, because neither database engine uses the partial index ix_runs_next with parameters.
_QUEUED = Run.status == literal_column("'queued'")
_SUBMITTER = func.coalesce(Run.submitted_by, literal_column("0"))
_USER = func.coalesce(Run.user_id, literal_column("-1"))
# Numbers are compared first, because comparing strings by a locale's collation is the slowest part of an index search.
_ALIKE = (
    "coalesce({0}submitted_by, 0), {0}priority, {0}queue, {0}needs_cuda, {0}needs_data, {0}needs_gpu, {0}needs_task, "
    "coalesce({0}user_id, -1)"
)
_COLUMNS = f"r.id, {_ALIKE.format('r.')}, r.created_at"
# PostgreSQL jumps from the first run of one kind to the first run of the next kind, with one index probe per kind. SQLite would
# use only two columns of the row comparison in that query and read the same rows repeatedly, so on SQLite one pass over the
# index is faster.
_FIRST_OF_EACH_KIND = {
    "postgresql": f"""
        WITH RECURSIVE first(id) AS (
            (SELECT id FROM runs WHERE status = 'queued' ORDER BY {_ALIKE.format("")}, id LIMIT 1)
            UNION ALL
            SELECT (SELECT n.id FROM runs n WHERE n.status = 'queued' AND ({_ALIKE.format("n.")}) > ({_ALIKE.format("r.")})
                    ORDER BY {_ALIKE.format("n.")}, n.id LIMIT 1)
            FROM first JOIN runs r ON r.id = first.id
        ) SELECT {_COLUMNS} FROM first JOIN runs r ON r.id = first.id""",  # noqa: S608 - our own columns
    "sqlite": f"""
        SELECT {_COLUMNS} FROM (SELECT min(id) AS id FROM runs INDEXED BY ix_runs_next
            WHERE status = 'queued' GROUP BY {_ALIKE.format("")}) first
        JOIN runs r ON r.id = first.id""",  # noqa: S608 - our own columns
}  # fmt: skip
# These statements are built once, not for every claim, because building a statement takes longer than executing it. Each
# execution costs two process switches, which take milliseconds on a busy machine, so a claim executes few statements.
_RUNNING_AND_SETTINGS = text("""
    SELECT queue, coalesce(user_id, -coalesce(submitted_by, 0)) AS submitter, count(*) AS running,
        NULL AS max_running, NULL AS paused
    FROM runs WHERE status = 'running' AND kind = 'trained' GROUP BY 1, 2
    UNION ALL SELECT name, NULL, NULL, max_running, paused FROM queues
    UNION ALL SELECT NULL, id, NULL, max_running, NULL FROM users WHERE max_running IS NOT NULL""")
_LOCK_QUEUES = select(Queue.name).where(Queue.name.in_(bindparam("names", expanding=True))).order_by(Queue.name).with_for_update()
_LOCK_USERS = select(User.id).where(User.id.in_(bindparam("users", expanding=True))).order_by(User.id).with_for_update()
_NEEDS = (Run.priority, Run.queue, Run.needs_cuda, Run.needs_data, Run.needs_gpu, Run.needs_task)
_KIND = (_SUBMITTER, *_NEEDS, _USER)
_THIS_KIND = tuple_(
    bindparam("token", type_=BigInteger), *(bindparam(column.key, type_=column.type) for column in _NEEDS),
    bindparam("user", type_=BigInteger),
)  # fmt: skip
_LOCKED = select(Run).limit(1).with_for_update(skip_locked=True).execution_options(populate_existing=True)
_ROW = _LOCKED.where(Run.id == bindparam("id"))
# The condition is a range that contains exactly one kind, in the order of ix_runs_next. With an equality instead, PostgreSQL
# without table statistics would read every run of the queue through another index.
_OLDEST_ALIKE = _LOCKED.where(_QUEUED, tuple_(*_KIND) >= _THIS_KIND, tuple_(*_KIND) <= _THIS_KIND).order_by(*_KIND, Run.id)


class Needs(NamedTuple):
    """What a run that is not stored yet requires of its worker. The fields have the same names as the columns of a stored
    run."""

    queue: str
    needs_cuda: bool
    needs_data: str
    needs_gpu: str = ""
    needs_task: str = ""


class Head(NamedTuple):
    """The oldest run of a kind. Queued runs are of the same kind if they agree in everything that determines which worker
    trains them and when."""

    id: int
    token: int  # 0: the token from the settings
    priority: int
    queue: str
    needs_cuda: bool
    needs_data: str
    needs_gpu: str
    needs_task: str
    user: int  # -1: no user
    created_at: float

    @property
    def submitter(self) -> int:
        """The id of the user; for a run without a user, the negated id of the token (0 for the token from the settings)."""
        return self.user if self.user >= 0 else -self.token


@dataclass(frozen=True)
class QueueState:
    """The state of a queue. `max_running` None means no limit; `oldest_at` is the time at which its longest-waiting run began
    to wait."""

    name: str
    max_running: int | None = None
    paused: bool = False
    running: int = 0
    queued: int = 0
    oldest_at: float | None = None

    @property
    def obstacle(self) -> str | None:
        """Why no run starts from this queue; None if a run may start."""
        if self.paused:
            return "is paused"
        if self.max_running is not None and self.running >= self.max_running:
            return f"is at its limit of {self.max_running} running runs"
        return None


def serves(capabilities: Mapping[str, Any], queue: str) -> bool:
    """True if a worker takes runs from this queue. A worker that names no queues takes runs from all queues."""
    named = capabilities.get("queues")
    return named is None or queue in named


def why_not(capabilities: Mapping[str, Any], run: Needs | Head | Run | Row[Any]) -> str | None:
    """Why a worker with these capabilities cannot train the run; None if the worker can train it.

    capabilities: {"devices": ["cpu", "cuda", ...], "data": {task or file: "ok" or what is wrong}, "gpus": [name, ...], "queues":
    [name, ...] or None for all, "tasks": [name, ...] or absent for all}. An unreported file counts as missing.
    """
    needs_gpu, needs_task, needs_data = run.needs_gpu, run.needs_task, run.needs_data
    if not serves(capabilities, run.queue):
        return f"it does not serve queue {run.queue!r}"
    if run.needs_cuda and not any(str(d).startswith("cuda") for d in capabilities.get("devices", ())):
        return "it has no CUDA device"
    if needs_gpu and not any(needs_gpu.casefold() in str(name).casefold() for name in capabilities.get("gpus", ())):
        return f"it has no GPU named {needs_gpu!r}"
    tasks = capabilities.get("tasks")
    if needs_task and tasks is not None and needs_task not in tasks:
        return f"it does not have the task {needs_task!r}"
    state = capabilities.get("data", {}).get(needs_data, "the worker does not have it")
    return f"data for {needs_data!r}: {state}" if needs_data and state != "ok" else None


def why_quarantined(capabilities: Mapping[str, Any]) -> str | None:
    """Why a worker claims no runs at present because of its machine; None if it claims runs."""
    quarantine = capabilities.get("quarantine")
    return None if quarantine is None else f"it takes no runs at present: {quarantine['reason']}"


def lock_next(session: Session, capabilities: Mapping[str, Any]) -> Run | None:
    """The run that this worker should take next; None if there is no such run. The run's row stays locked until the transaction
    ends.

    Rows that another worker is taking are skipped. Claims from a queue that has settings are made one after
    another, so that the queue's limit is never exceeded.
    """
    heads = [head for head in first_of_each_kind(session) if why_not(capabilities, head) is None]
    heads, running = _startable(session, heads)
    for head in _in_order(heads, running):
        run = session.scalar(_ROW, {"id": head.id})
        if run is not None and run.status == "queued" and _kind(run) == head[1:-1]:
            return run
        if (
            run := session.scalar(_OLDEST_ALIKE, head._asdict())
        ) is not None:  # another worker took the oldest run, or the run was moved
            return run
    return None


def first_of_each_kind(session: Session) -> list[Head]:
    """The oldest run of each kind of queued runs. On PostgreSQL the cost depends on the number of kinds, not on the number of
    runs."""
    return [Head._make(row) for row in session.execute(text(_FIRST_OF_EACH_KIND[session.get_bind().dialect.name]))]


def change_queue(session: Session, name: str, changes: Mapping[str, Any]) -> None:
    """Set `max_running` and `paused` if `changes` contains them. Waits until claims in progress from that queue have ended."""
    session.execute(insert_into(session, Queue).values(name=name).on_conflict_do_nothing(index_elements=["name"]))
    queue = session.scalars(select(Queue).where(Queue.name == name).with_for_update()).one()
    for field, value in changes.items():
        setattr(queue, field, value)


def queue_states(session: Session) -> dict[str, QueueState]:
    """Every queue that has settings or running runs, by name. Waiting runs are not counted."""
    settings = {row.name: row for row in session.execute(select(Queue.name, Queue.max_running, Queue.paused))}
    counted = select(Run.queue, func.count()).where(Run.status == "running", Run.kind == "trained").group_by(Run.queue)
    running = dict(session.execute(counted).all())
    return {
        name: QueueState(name, own.max_running, own.paused, running.get(name, 0))
        if (own := settings.get(name))
        else QueueState(name, running=running[name])
        for name in {*settings, *running}
    }


def all_queues(session: Session, workers: Iterable[Worker] = ()) -> list[QueueState]:
    """The default queue and every queue that has settings, waiting or running runs, or one of these workers, sorted by name."""
    states, waits = queue_states(session), waiting(session)
    named = {str(name) for worker in workers for name in worker.capabilities.get("queues") or ()}
    found = []
    for name in sorted({DEFAULT_QUEUE, *states, *named, *waits}):
        queued, oldest_at = waits.get(name, (0, None))
        found.append(replace(states.get(name, QueueState(name)), queued=queued, oldest_at=oldest_at))
    return found


def waiting(session: Session) -> dict[str, tuple[int, float]]:
    """How many runs wait in each queue, and when the oldest of these began to wait. The cost grows with the number of runs."""
    # a queued run's newest event is its entry into the queue (submitted, requeued, resumed); most runs have only this event
    came = select(Transition.at).where(Transition.run_id == Run.id, Transition.seq == Run.seq).scalar_subquery()
    since = func.min(case((Run.seq > 1, func.coalesce(came, Run.created_at)), else_=Run.created_at))
    rows = session.execute(select(Run.queue, func.count(), since).where(_QUEUED).group_by(Run.queue))
    return {queue: (number, at) for queue, number, at in rows}


def _kind(run: Run) -> tuple[int, int, str, bool, str, str, str, int]:
    needs = (run.priority, run.queue, run.needs_cuda, run.needs_data, run.needs_gpu, run.needs_task)
    return (run.submitted_by or 0, *needs, -1 if run.user_id is None else run.user_id)


def _startable(session: Session, heads: Sequence[Head]) -> tuple[list[Head], dict[tuple[str, int], int]]:
    """The heads that may start within the limits of their queue and user, and the number of running runs by queue and
    submitter.

    The rows of limited queues and users are locked.
    """
    if not heads:
        return [], {}
    # read without locks first, because a worker that polls paused or full queues must not write
    open_heads, running, own, capped = _look(session, heads)
    limited, limited_users = {head.queue for head in open_heads} & own, {head.user for head in open_heads} & capped
    if limited:
        session.execute(_LOCK_QUEUES, {"names": sorted(limited)}).all()
    if limited_users:
        session.execute(_LOCK_USERS, {"users": sorted(limited_users)}).all()
    if limited or limited_users:
        # while the rows are locked, no other transaction can start runs in these queues or for these users
        open_heads, running, _, _ = _look(session, open_heads)
    return open_heads, running


def _look(session: Session, heads: Sequence[Head]) -> tuple[list[Head], dict[tuple[str, int], int], set[str], set[int]]:
    """The heads that may start now, running runs by queue and submitter, queues with settings, and users with a quota."""
    running: dict[tuple[str, int], int] = {}
    settings: dict[str, tuple[int | None, bool]] = {}
    quotas: dict[int, int] = {}
    for queue, submitter, number, most, paused in session.execute(_RUNNING_AND_SETTINGS):
        if submitter is None:
            settings[queue] = (most, bool(paused))
        elif queue is None:
            quotas[submitter] = most
        else:
            running[queue, submitter] = number
    in_queue: Counter[str] = Counter()
    of_user: Counter[int] = Counter()
    for (queue, submitter), number in running.items():
        in_queue[queue] += number
        of_user[submitter] += number
    shut = {name for name, (most, paused) in settings.items() if QueueState(name, most, paused, in_queue[name]).obstacle}
    full = {user for user, most in quotas.items() if of_user[user] >= most}
    open_heads = [head for head in heads if head.queue not in shut and head.user not in full]
    return open_heads, running, set(settings), set(quotas)


def _in_order(heads: Sequence[Head], running: Mapping[tuple[str, int], int]) -> list[Head]:
    order = sorted(heads, key=lambda head: (-head.priority, running.get((head.queue, head.submitter), 0), head.id))
    if order and random.random() < PATIENT_SHARE:
        oldest = min(order, key=lambda head: head.id)
        if time.time() - oldest.created_at > PATIENCE_SECONDS:
            order.insert(0, oldest)
    return order
