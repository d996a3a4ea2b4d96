"""The database schema: what is kept, in which table, under which key. The row is the truth; messages only say "look".

Timestamps are UTC epoch seconds (float), so both engines store and compare them alike; leases are never judged by them but by
`beat` counters that a reaper watches on its own monotonic clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

STATUSES = ("queued", "running", "finished", "failed", "diverged", "cancelled")
FINAL = ("finished", "failed", "diverged", "cancelled")

Json = JSON().with_variant(JSONB(), "postgresql")
OptionalJson = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")  # None is NULL, not JSON's null
# SQLite hands out row ids for INTEGER primary keys only
Id = BigInteger().with_variant(Integer(), "sqlite")


class Base(DeclarativeBase):
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(column_0_N_label)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )


class Sweep(Base):
    """A grid of runs made from one base configuration."""

    __tablename__ = "sweeps"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    base: Mapped[dict[str, Any]] = mapped_column(Json)
    grid: Mapped[dict[str, Any]] = mapped_column(Json)
    created_at: Mapped[float] = mapped_column(Float(53))
    name: Mapped[str | None] = mapped_column(String(200))  # None: that of the base configuration
    submitted_by: Mapped[int | None] = mapped_column(Id)  # token; None for the token of the settings


class Run(Base):
    """One training run: configuration, queue entry, lease, progress and result in one row."""

    __tablename__ = "runs"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str | None] = mapped_column(String(200))
    tags: Mapped[list[str]] = mapped_column(Json)
    notes: Mapped[str] = mapped_column(Text, server_default="")
    config: Mapped[dict[str, Any]] = mapped_column(Json)
    sweep_id: Mapped[int | None] = mapped_column(Id, ForeignKey("sweeps.id"), index=True)
    cloned_from: Mapped[int | None] = mapped_column(Id)
    idempotency_key: Mapped[str | None] = mapped_column(String(200), unique=True)
    status: Mapped[str] = mapped_column(String(16), server_default="queued")
    status_reason: Mapped[str] = mapped_column(Text, server_default="")
    priority: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    needs_cuda: Mapped[bool] = mapped_column(server_default=text("false"))
    needs_data: Mapped[str] = mapped_column(String(300), server_default="")  # data set or file a worker must have; "" for none
    needs_task: Mapped[str] = mapped_column(String(60), server_default="")  # task a worker must have; "" for any
    queue: Mapped[str] = mapped_column(String(60), server_default="default")
    needs_gpu: Mapped[str] = mapped_column(String(60), server_default="")  # part of a GPU's name, "H200"; "" for any
    submitted_by: Mapped[int | None] = mapped_column(Id)  # token; None for the token of the settings
    user_id: Mapped[int | None] = mapped_column(Id)  # None where an older program submitted it: the token says whose it is
    created_at: Mapped[float] = mapped_column(Float(53))
    started_at: Mapped[float | None] = mapped_column(Float(53))
    finished_at: Mapped[float | None] = mapped_column(Float(53))
    # lease: `attempt` is the fencing token, `beat` moves with every heartbeat of the owner
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    beat: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    owner: Mapped[str | None] = mapped_column(String(200))
    # where it runs, or ran last: stays when the lease ends
    worker: Mapped[str | None] = mapped_column(String(200))
    host: Mapped[str | None] = mapped_column(String(200))
    gpu_name: Mapped[str | None] = mapped_column(String(200))
    workers_lost: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # since the last new checkpoint, or resume
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    # progress; `seq` numbers every event of the run without gaps (it is the id of its live stream)
    seq: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    step: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # steps done
    steps_per_second: Mapped[float | None] = mapped_column(Float(53))
    environment: Mapped[dict[str, Any] | None] = mapped_column(Json)  # device, versions, backend, parameter groups, data facts
    result: Mapped[dict[str, Any] | None] = mapped_column(Json)  # final numbers; non-finite as "NaN", "Infinity", "-Infinity"
    divergence: Mapped[dict[str, Any] | None] = mapped_column(Json)  # step, layer, eigenvalue, tensor, value
    compacted_at: Mapped[float | None] = mapped_column(Float(53))  # its blocks were merged; None again after a resume
    # the distinct forms of its layers, from its series, for lists and filters; None: see server/series/forms.py
    forms: Mapped[list[dict[str, Any]] | None] = mapped_column(OptionalJson)
    bytes_stored: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # see server/series/occupied.py
    # what its numbers say: the largest and smallest so far over all layers, eigenvalues and steps, those taken back later too
    largest_ratio: Mapped[float | None] = mapped_column(Float(53))  # finite |grad|/|w|
    largest_relative_step: Mapped[float | None] = mapped_column(Float(53))  # finite
    nearest_distance: Mapped[float | None] = mapped_column(Float(53))  # 1 - |lambda_bar|, negative outside
    overflow_budget: Mapped[float | None] = mapped_column(Float(53))
    # of its last step {eigenvalues, of, worst_distance, overflow_budget, overflows_at_length}; None: all inside, or not known
    unstable: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)
    cause: Mapped[str | None] = mapped_column(String(40))  # of the verdict; None: nothing went wrong, or not judged
    judged_at: Mapped[float | None] = mapped_column(Float(53))  # since when `unstable` and `cause` are those of the ended run
    forked_from: Mapped[int | None] = mapped_column(Id, index=True)  # the run whose checkpoint it began from
    forked_at_step: Mapped[int | None] = mapped_column(BigInteger)  # the step of that checkpoint
    fork_changes: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)  # what was changed, by dotted path
    hidden: Mapped[bool] = mapped_column(server_default=text("false"))  # from lists, unless they ask for hidden runs
    deleted_at: Mapped[float | None] = mapped_column(Float(53))  # since when it is in the trash; None: it is not
    deleted_by: Mapped[str | None] = mapped_column(String(200))  # who put it there, by name
    __table_args__ = (
        Index("ix_runs_queue", "status", text("priority DESC"), "id"),  # the queue in its order, and counts by status
        # running runs by submitter: limits and fairness
        Index("ix_runs_status_queue_submitted_by", "status", "queue", "submitted_by"),
        Index(  # queued runs, those alike together: the first of each kind is found without reading the others
            "ix_runs_next",
            *(text("coalesce(submitted_by, 0)"), "priority", "queue"),
            *("needs_cuda", "needs_data", "needs_gpu", "needs_task", text("coalesce(user_id, -1)"), "id"),
            sqlite_where=text("status = 'queued'"),
            postgresql_where=text("status = 'queued'"),
        ),
        Index(
            "ix_runs_deleted_at",
            "deleted_at",
            sqlite_where=text("deleted_at IS NOT NULL"),
            postgresql_where=text("deleted_at IS NOT NULL"),
        ),
        Index("ix_runs_user_id_status", "user_id", "status"),  # what a user has queued, and has at all: quotas, "my runs"
        # the id of a deleted run is never given again: a worker that still holds it must not write into another run
        {"sqlite_autoincrement": True},
    )


NOT_IN_TRASH = Run.deleted_at.is_(None)  # of every list, and of whatever finds a run by its number


class View(Base):
    """A saved view of the list of runs: its query string (filter, order, columns) under a name."""

    __tablename__ = "views"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    user_id: Mapped[int | None] = mapped_column(Id)
    name: Mapped[str] = mapped_column(String(100))
    query: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Float(53))
    __table_args__ = (Index("ix_views_user_id_name", "user_id", "name", unique=True),)


class DeletedRun(Base):
    """A run that is gone for good. Every machine that finds its folder removes it, however late it comes; so this row stays."""

    __tablename__ = "deleted_runs"
    run_id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=False)
    at: Mapped[float] = mapped_column(Float(53))
    files: Mapped[list[list[str]]] = mapped_column(Json)  # path and SHA-256 of checkpoints, by which a folder is known as ours


class Installation(Base):
    """The name of this installation, made once: a folder that carries another one belongs to another database. One row."""

    __tablename__ = "installation"
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(40))


class SeriesRow(Base):
    """Catalogue of a run: where a series lives in its group's blocks."""

    __tablename__ = "series"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(120), primary_key=True)
    group_name: Mapped[str] = mapped_column(String(60))
    # first column in the group's blocks (derived: level blocks only)
    column_offset: Mapped[int] = mapped_column(Integer)
    width: Mapped[int] = mapped_column(Integer)
    unit: Mapped[str] = mapped_column(String(20))
    derived: Mapped[bool] = mapped_column()
    # how the layer's eigenvalues follow from its weights (stablessm_core.forms); None: see server/series/forms.py
    form: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)


class BlockRow(Base):
    """Compressed numbers of one group (see stablessm_core.telemetry.blocks). All blocks of one flush share `seq`."""

    __tablename__ = "blocks"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    group_name: Mapped[str] = mapped_column(String(60), primary_key=True)
    level: Mapped[int] = mapped_column(Integer, primary_key=True)
    first_step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    last_step: Mapped[int] = mapped_column(BigInteger)
    stride: Mapped[int] = mapped_column(BigInteger)
    point_count: Mapped[int] = mapped_column(Integer)
    column_count: Mapped[int] = mapped_column(Integer)
    attempt: Mapped[int] = mapped_column(Integer)
    seq: Mapped[int] = mapped_column(BigInteger)
    payload: Mapped[bytes] = mapped_column(LargeBinary)
    checksum: Mapped[int | None] = mapped_column(BigInteger)  # see server.database.payloads; none: an older program wrote it
    __table_args__ = (Index("ix_blocks_run_id_seq", "run_id", "seq"),)


class AlertRow(Base):
    """Something a person should see, where and when it happened. `value` is text so that NaN and infinities survive."""

    __tablename__ = "alerts"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"))
    seq: Mapped[int] = mapped_column(BigInteger)
    attempt: Mapped[int] = mapped_column(Integer)
    kind: Mapped[str] = mapped_column(String(40))  # nonfinite_loss, nonfinite_gradient, ..., see telemetry/detectors/registry.py
    severity: Mapped[str] = mapped_column(String(10))  # warning, critical
    step: Mapped[int] = mapped_column(BigInteger)
    series: Mapped[str] = mapped_column(String(120), server_default="")
    layer: Mapped[int | None] = mapped_column(Integer)
    eigenvalue: Mapped[int | None] = mapped_column(Integer)
    tensor: Mapped[str] = mapped_column(String(200), server_default="")
    value: Mapped[str] = mapped_column(String(40), server_default="")
    message: Mapped[str] = mapped_column(Text)
    created_at: Mapped[float] = mapped_column(Float(53))
    __table_args__ = (
        Index("uq_alerts_event", "run_id", "kind", "series", "tensor", "step", "attempt", unique=True),
        Index("ix_alerts_run_id_seq", "run_id", "seq"),
    )


class Transition(Base):
    """A status change of a run, with its reason: history for people, event for the live stream."""

    __tablename__ = "transitions"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    attempt: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(BigInteger)
    truncated_from: Mapped[int | None] = mapped_column(BigInteger)  # steps from here on were truncated (resume, rollback)
    at: Mapped[float] = mapped_column(Float(53))
    worker: Mapped[str | None] = mapped_column(String(200))  # who had the run then; None: nobody, or a row of an older program


class LogRow(Base):
    """A piece of what a run's training processes printed, in order. Bounded per run: pieces in the middle are deleted."""

    __tablename__ = "run_logs"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)  # characters of the run's log before this piece
    attempt: Mapped[int] = mapped_column(Integer)
    text: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Float(53))


class TracebackRow(Base):
    """Where in the program an attempt failed."""

    __tablename__ = "tracebacks"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    text: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Float(53))


class CheckpointRow(Base):
    """A checkpoint file a run can resume from; loaded only if its sha-256 matches."""

    __tablename__ = "checkpoints"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer)
    path: Mapped[str] = mapped_column(String(400))  # relative to the data directory, and in the checkpoint store
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # of the file; 0: an older program wrote it
    created_at: Mapped[float] = mapped_column(Float(53))
    stored_at: Mapped[float | None] = mapped_column(Float(53))  # since when it is in the checkpoint store; None: it is not


class Worker(Base):
    """A worker process, what it can do, and its last sign of life."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(String(200), primary_key=True)  # host:pid:start
    host: Mapped[str] = mapped_column(String(200))
    slots: Mapped[int] = mapped_column(Integer)
    capabilities: Mapped[dict[str, Any]] = mapped_column(Json)  # devices, backends, data sets, versions
    beat: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    started_at: Mapped[float] = mapped_column(Float(53))
    seen_at: Mapped[float] = mapped_column(Float(53))


class Queue(Base):
    """A queue's limits. A queue without a row has none and is not paused."""

    __tablename__ = "queues"
    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    max_running: Mapped[int | None] = mapped_column(Integer)
    paused: Mapped[bool] = mapped_column(server_default=text("false"))


class User(Base):
    """Whoever holds tokens, or is named by a proxy: the name that is shown, and what may be used. 0 is the settings' token's."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    identity: Mapped[str | None] = mapped_column(String(200), unique=True)  # what a trusted proxy's header calls them
    may_change_all: Mapped[bool] = mapped_column(server_default=text("false"))  # runs of others too
    # quotas; None: none
    max_running: Mapped[int | None] = mapped_column(Integer)
    max_queued: Mapped[int | None] = mapped_column(Integer)
    max_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(Float(53))
    __table_args__ = ({"sqlite_autoincrement": True},)


class Token(Base):
    """A key to the service. Only its SHA-256 is kept: 256 random bits need no slow hash."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    scope: Mapped[str] = mapped_column(String(10))  # read, submit, admin: each holds the one before
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float] = mapped_column(Float(53))
    expires_at: Mapped[float | None] = mapped_column(Float(53))
    revoked_at: Mapped[float | None] = mapped_column(Float(53))
    last_used_at: Mapped[float | None] = mapped_column(Float(53))
    user_id: Mapped[int | None] = mapped_column(Id)  # None: nobody was named yet
    names_users: Mapped[bool] = mapped_column(server_default=text("false"))  # a proxy's: each request says by header for whom
    # a deleted token's id must not come to stand for another in `runs.submitted_by` and the audit log
    __table_args__ = ({"sqlite_autoincrement": True},)


class EndedSession(Base):
    """A browser's session that was signed out, by the SHA-256 of its cookie; kept until the cookie would have ended by itself."""

    __tablename__ = "ended_sessions"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    until: Mapped[float] = mapped_column(Float(53))
    # server processes ask for what came after the last id they saw: an id must not come again
    __table_args__ = ({"sqlite_autoincrement": True},)


class AuditRow(Base):
    """Who changed what: one row per write that came in over HTTP, refused ones included."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at: Mapped[float] = mapped_column(Float(53), index=True)
    token_id: Mapped[int | None] = mapped_column(Id)
    token_name: Mapped[str] = mapped_column(String(100))  # as it was then; "" when no token was recognised
    address: Mapped[str] = mapped_column(String(60))
    method: Mapped[str] = mapped_column(String(10))
    path: Mapped[str] = mapped_column(String(300))
    status: Mapped[int] = mapped_column(Integer)
    run_id: Mapped[int | None] = mapped_column(Id)
    user_name: Mapped[str] = mapped_column(String(100), server_default="")  # as it was then


class Webhook(Base):
    """An address that gets alerts and ends of runs. `cursor`: the last event that was delivered."""

    __tablename__ = "webhooks"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    url: Mapped[str] = mapped_column(String(500))
    events: Mapped[list[str]] = mapped_column(Json)
    cursor: Mapped[dict[str, Any]] = mapped_column(Json)
    failures: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # in a row
    last_error: Mapped[str] = mapped_column(String(300), server_default="")
    created_at: Mapped[float] = mapped_column(Float(53))
