"""The database schema. The rows are authoritative: a message between processes only means "read the rows again".

Timestamps are UTC epoch seconds (float), which both engines store and compare in the same way. Leases do not depend on
timestamps: server.lifecycle.lost_runs watches the `beat` counters on its own monotonic clock.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Text, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

Json = JSON().with_variant(JSONB(), "postgresql")
OptionalJson = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")  # None becomes NULL, not JSON's null
# SQLite assigns row ids only to INTEGER primary keys
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
    name: Mapped[str | None] = mapped_column(String(200))  # None: the name in the base configuration is used
    submitted_by: Mapped[int | None] = mapped_column(Id)  # id of the token; None: the token from the settings
    idempotency_key: Mapped[str | None] = mapped_column(String(200))
    __table_args__ = (Index("uq_sweeps_idempotency_key", "idempotency_key", unique=True),)


class SearchRow(Base):
    """The search whose trials are the runs of a sweep (stablessm_core.spec.search). A sweep that is a grid has no such row."""

    __tablename__ = "searches"
    sweep_id: Mapped[int] = mapped_column(Id, ForeignKey("sweeps.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)
    search: Mapped[dict[str, Any]] = mapped_column(Json)
    round: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # how often decisions were stored; see searches.py
    ended_at: Mapped[float | None] = mapped_column(Float(53))  # when no trial was left to decide on


class RungRow(Base):
    """The decision of a search on one trial at one rung: whether the trial continues, and why."""

    __tablename__ = "rungs"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)
    rung: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)  # the first rung is 1
    sweep_id: Mapped[int] = mapped_column(Id, ForeignKey("searches.sweep_id", ondelete="CASCADE"), index=True)
    step: Mapped[int] = mapped_column(BigInteger)  # the step of the rung, or the step at which the trial became unstable
    value: Mapped[float | None] = mapped_column(Float(53))  # the metric at the rung; None: it was not finite
    outcome: Mapped[str] = mapped_column(String(16))  # continued, behind, unstable
    reason: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Float(53))


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
    needs_data: Mapped[str] = mapped_column(String(300), server_default="")  # data set or file that a worker must have, or ""
    needs_task: Mapped[str] = mapped_column(String(60), server_default="")  # task that a worker must have; "" for any
    queue: Mapped[str] = mapped_column(String(60), server_default="default")
    needs_gpu: Mapped[str] = mapped_column(String(60), server_default="")  # part of a GPU's name, such as "H200"; "" for any
    submitted_by: Mapped[int | None] = mapped_column(Id)  # id of the token; None: the token from the settings
    user_id: Mapped[int | None] = mapped_column(Id)  # None: an older version stored the run; use `submitted_by`
    created_at: Mapped[float] = mapped_column(Float(53))
    started_at: Mapped[float | None] = mapped_column(Float(53))
    finished_at: Mapped[float | None] = mapped_column(Float(53))
    # lease: `attempt` is the fencing token; `beat` increases with every heartbeat of the owner
    attempt: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    beat: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    owner: Mapped[str | None] = mapped_column(String(200))
    # where the run trains or last trained; these columns keep their values when the lease ends
    worker: Mapped[str | None] = mapped_column(String(200))
    host: Mapped[str | None] = mapped_column(String(200))
    gpu_name: Mapped[str | None] = mapped_column(String(200))
    workers_lost: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # losses since the last checkpoint or resume
    cancel_requested: Mapped[bool] = mapped_column(server_default=text("false"))
    # progress; `seq` is the number of the run's newest event. Event numbers have no gaps and serve as ids in the live stream.
    seq: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    step: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # completed steps
    steps_per_second: Mapped[float | None] = mapped_column(Float(53))
    environment: Mapped[dict[str, Any] | None] = mapped_column(Json)  # device, versions, backend, parameter groups, data
    result: Mapped[dict[str, Any] | None] = mapped_column(Json)  # final values; "NaN", "Infinity", "-Infinity" if not finite
    divergence: Mapped[dict[str, Any] | None] = mapped_column(Json)  # step, layer, eigenvalue, tensor, value
    compacted_at: Mapped[float | None] = mapped_column(Float(53))  # when the blocks were merged; None again after a resume
    # the distinct forms of the run's layers, copied from its series for lists and filters; None: see server/series/forms.py
    forms: Mapped[list[dict[str, Any]] | None] = mapped_column(OptionalJson)
    bytes_stored: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # see server/series/occupied.py
    # extreme values so far over all layers, eigenvalues and steps, including steps that were truncated later
    largest_ratio: Mapped[float | None] = mapped_column(Float(53))  # largest finite |grad| / |w|
    largest_relative_step: Mapped[float | None] = mapped_column(Float(53))  # largest finite step / distance to the boundary
    nearest_distance: Mapped[float | None] = mapped_column(Float(53))  # smallest 1 - |lambda_bar|; negative: unstable
    overflow_budget: Mapped[float | None] = mapped_column(Float(53))
    # eigenvalues outside the stability boundary at the last step, as {eigenvalues, of, worst_distance, overflow_budget,
    # overflows_at_length}; None: no eigenvalue is outside the boundary, or the eigenvalues are not known
    unstable: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)
    cause: Mapped[str | None] = mapped_column(String(40))  # the verdict's cause; None: nothing went wrong, or no verdict yet
    judged_at: Mapped[float | None] = mapped_column(Float(53))  # when `unstable` and `cause` were set for the ended run
    forked_from: Mapped[int | None] = mapped_column(Id, index=True)  # the run from whose checkpoint this fork started
    forked_at_step: Mapped[int | None] = mapped_column(BigInteger)  # the step of that checkpoint
    fork_changes: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)  # the changed settings, by dotted path
    hidden: Mapped[bool] = mapped_column(server_default=text("false"))  # True: lists omit the run by default
    # trained: our workers train the run; reported: another program trains it and reports
    kind: Mapped[str] = mapped_column(String(16), server_default="trained")
    project: Mapped[str] = mapped_column(String(200), server_default="")  # "": none
    external_id: Mapped[str | None] = mapped_column(String(36))  # the UUID that the reporting program chose; None: a trained run
    # the configuration of a reported run, any JSON; `config` of such a run is {}
    reported_config: Mapped[Any | None] = mapped_column(OptionalJson)
    # how the run trains: optimizer, learning rate, clipping, length, steps; None: a trained run, whose `config` says it
    how: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)
    # name, path, width and note of each layer of a reported run
    layers: Mapped[list[dict[str, Any]] | None] = mapped_column(OptionalJson)
    # rules for alerts about a reported run: name, condition and steps of each; None: a trained run, whose `config` has them
    rules: Mapped[list[dict[str, Any]] | None] = mapped_column(OptionalJson)
    rule_states: Mapped[list[list[Any]] | None] = mapped_column(OptionalJson)  # see server/series/rules.py
    # how far the built-in alerts of a reported run have come: see server/ingest/alerts.py
    detector_state: Mapped[bytes | None] = mapped_column(LargeBinary, deferred=True)
    # the newest value of each scalar, as {group: [value of each column]}; "NaN", "Infinity", "-Infinity" if not finite
    last_values: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson, deferred=True)
    deleted_at: Mapped[float | None] = mapped_column(Float(53))  # when the run was moved to the trash; None: not in the trash
    deleted_by: Mapped[str | None] = mapped_column(String(200))  # name of the user who moved the run to the trash
    __table_args__ = (
        Index("ix_runs_queue", "status", text("priority DESC"), "id"),  # to read the queue in order and to count runs by status
        # to count running runs by submitter, for limits and fairness
        Index("ix_runs_status_queue_submitted_by", "status", "queue", "submitted_by"),
        Index(  # groups similar queued runs, so that the first run of each group is found without reading the rest
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
        Index("uq_runs_external_id", "external_id", unique=True),
        Index("ix_runs_project", "project"),
        Index("ix_runs_user_id_status", "user_id", "status"),  # to list a user's runs, and to count queued runs for quotas
        # the id of a deleted run is never reused: a worker that still has the id must not write into another run
        {"sqlite_autoincrement": True},
    )


NOT_IN_TRASH = Run.deleted_at.is_(None)  # every list, and every search for a run by its id, has this condition


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
    """A run that was deleted for good. This row remains, so that every machine removes the run's folder, even long after the
    deletion."""

    __tablename__ = "deleted_runs"
    run_id: Mapped[int] = mapped_column(Id, primary_key=True, autoincrement=False)
    at: Mapped[float] = mapped_column(Float(53))
    files: Mapped[list[list[str]]] = mapped_column(Json)  # path and SHA-256 of its checkpoints, to recognise the run's folder


class Installation(Base):
    """The name of this installation, created once, in a single row. A run folder marked with another name belongs to another
    database."""

    __tablename__ = "installation"
    number: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    name: Mapped[str] = mapped_column(String(40))


class SeriesRow(Base):
    """A series in a run's catalogue, with its position in the blocks of its group."""

    __tablename__ = "series"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    name: Mapped[str] = mapped_column(String(120), primary_key=True)
    group_name: Mapped[str] = mapped_column(String(60))
    # first column of the series in the group's blocks (a derived series is only in blocks of levels above 0)
    column_offset: Mapped[int] = mapped_column(Integer)
    width: Mapped[int] = mapped_column(Integer)
    unit: Mapped[str] = mapped_column(String(20))
    derived: Mapped[bool] = mapped_column()
    # how the layer's eigenvalues follow from its weights (stablessm_core.telemetry.forms); None: see server/series/forms.py
    form: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)


class BlockRow(Base):
    """The compressed values of one group of series (see stablessm_core.telemetry.blocks). All blocks of one flush share
    `seq`."""

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
    checksum: Mapped[int | None] = mapped_column(BigInteger)  # see server.database.payloads; None: an older version wrote it
    __table_args__ = (Index("ix_blocks_run_id_seq", "run_id", "seq"),)


class AlertRow(Base):
    """An event that a person should see, and where and when it happened. `value` is text, so that it can be NaN or infinite."""

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
    """A status change of a run, with its reason. It is shown in the run's history and sent as an event of the live stream."""

    __tablename__ = "transitions"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    status: Mapped[str] = mapped_column(String(16))
    reason: Mapped[str] = mapped_column(Text)
    attempt: Mapped[int] = mapped_column(Integer)
    step: Mapped[int] = mapped_column(BigInteger)
    truncated_from: Mapped[int | None] = mapped_column(BigInteger)  # first deleted step after a resume or rollback
    at: Mapped[float] = mapped_column(Float(53))
    worker: Mapped[str | None] = mapped_column(
        String(200)
    )  # the worker that held the run at that time; None: no worker, or a row of an older version


class LogRow(Base):
    """A piece of the output of a run's training processes. The size per run is limited: pieces in the middle are deleted."""

    __tablename__ = "run_logs"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    start: Mapped[int] = mapped_column(BigInteger, primary_key=True)  # number of characters in the run's log before this piece
    attempt: Mapped[int] = mapped_column(Integer)
    text: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Float(53))


class TracebackRow(Base):
    """The Python traceback of a failed attempt."""

    __tablename__ = "tracebacks"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer, primary_key=True)
    text: Mapped[str] = mapped_column(Text)
    at: Mapped[float] = mapped_column(Float(53))


class CheckpointRow(Base):
    """A checkpoint file that a run can resume from; the file is loaded only if its SHA-256 matches."""

    __tablename__ = "checkpoints"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True)
    step: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    attempt: Mapped[int] = mapped_column(Integer)
    path: Mapped[str] = mapped_column(String(400))  # relative to the data directory, and to the checkpoint store
    sha256: Mapped[str] = mapped_column(String(64))
    bytes: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))  # file size; 0: recorded by an older version
    created_at: Mapped[float] = mapped_column(Float(53))
    stored_at: Mapped[float | None] = mapped_column(Float(53))  # when the file was copied to the checkpoint store; None: never


class AutopsyRow(Base):
    """The autopsy of a run: the request, its state, and what it found (server/lifecycle/autopsies.py)."""

    __tablename__ = "autopsies"
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), primary_key=True, autoincrement=False)
    attempt: Mapped[int] = mapped_column(Integer)  # the run's attempt that ended; a later attempt makes the autopsy outdated
    state: Mapped[str] = mapped_column(String(16))  # queued, running, done, failed
    reason: Mapped[str] = mapped_column(Text, server_default="")
    step: Mapped[int | None] = mapped_column(BigInteger)  # the step to repeat; None: the step at which a number became NaN
    findings: Mapped[dict[str, Any] | None] = mapped_column(OptionalJson)  # "NaN", "Infinity", "-Infinity" if not finite
    requested_at: Mapped[float] = mapped_column(Float(53))
    requested_by: Mapped[str | None] = mapped_column(String(200))  # name of the user; None: queued when the run diverged
    started_at: Mapped[float | None] = mapped_column(Float(53))
    ended_at: Mapped[float | None] = mapped_column(Float(53))
    # lease: owner and `started_at` are the fence of every later write; `beat` increases with every heartbeat of the owner
    owner: Mapped[str | None] = mapped_column(String(200))
    beat: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    losses: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # how often its worker or its process was lost
    seq: Mapped[int] = mapped_column(BigInteger)  # number of the run's event at which the state last changed
    __table_args__ = (Index("ix_autopsies_state", "state"),)


class Worker(Base):
    """A worker process, its capabilities, and its last heartbeat."""

    __tablename__ = "workers"
    id: Mapped[str] = mapped_column(String(200), primary_key=True)  # host:pid:start
    host: Mapped[str] = mapped_column(String(200))
    slots: Mapped[int] = mapped_column(Integer)
    capabilities: Mapped[dict[str, Any]] = mapped_column(Json)  # devices, backends, data sets, versions
    beat: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    started_at: Mapped[float] = mapped_column(Float(53))
    seen_at: Mapped[float] = mapped_column(Float(53))


class Queue(Base):
    """A queue's limits. A queue without a row has no limits and is not paused."""

    __tablename__ = "queues"
    name: Mapped[str] = mapped_column(String(60), primary_key=True)
    max_running: Mapped[int | None] = mapped_column(Integer)
    paused: Mapped[bool] = mapped_column(server_default=text("false"))


class User(Base):
    """A user, with quotas. Users own tokens or are named by a proxy. User 0 owns the token from the settings."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    identity: Mapped[str | None] = mapped_column(String(200), unique=True)  # the user's name in a header of a trusted proxy
    may_change_all: Mapped[bool] = mapped_column(server_default=text("false"))  # this user may also change runs of other users
    # quotas; None: no limit
    max_running: Mapped[int | None] = mapped_column(Integer)
    max_queued: Mapped[int | None] = mapped_column(Integer)
    max_bytes: Mapped[int | None] = mapped_column(BigInteger)
    created_at: Mapped[float] = mapped_column(Float(53))
    __table_args__ = ({"sqlite_autoincrement": True},)


class Token(Base):
    """A token that gives access to the service. Only its SHA-256 is stored; a fast hash is safe for 256 random bits."""

    __tablename__ = "tokens"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    name: Mapped[str] = mapped_column(String(100))
    scope: Mapped[str] = mapped_column(String(10))  # read, submit or admin; each scope includes the scopes before it
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    created_at: Mapped[float] = mapped_column(Float(53))
    expires_at: Mapped[float | None] = mapped_column(Float(53))
    revoked_at: Mapped[float | None] = mapped_column(Float(53))
    last_used_at: Mapped[float | None] = mapped_column(Float(53))
    user_id: Mapped[int | None] = mapped_column(Id)  # None: the token has no user
    names_users: Mapped[bool] = mapped_column(
        server_default=text("false")
    )  # True for a proxy's token: a header of each request names the user
    # the id of a deleted token is never reused: `runs.submitted_by` and the audit log refer to it
    __table_args__ = ({"sqlite_autoincrement": True},)


class EndedSession(Base):
    """A browser session that was signed out: the SHA-256 of its cookie, kept until the cookie expires."""

    __tablename__ = "ended_sessions"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    sha256: Mapped[str] = mapped_column(String(64), unique=True)
    until: Mapped[float] = mapped_column(Float(53))
    # ids are never reused, because server processes read only the rows after the last id that they have read
    __table_args__ = ({"sqlite_autoincrement": True},)


class AuditRow(Base):
    """Who changed what: one row per HTTP request that writes, including refused requests."""

    __tablename__ = "audit"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at: Mapped[float] = mapped_column(Float(53), index=True)
    token_id: Mapped[int | None] = mapped_column(Id)
    token_name: Mapped[str] = mapped_column(String(100))  # the token's name at the time of the request; "": no valid token
    address: Mapped[str] = mapped_column(String(60))
    method: Mapped[str] = mapped_column(String(10))
    path: Mapped[str] = mapped_column(String(300))
    status: Mapped[int] = mapped_column(Integer)
    run_id: Mapped[int | None] = mapped_column(Id)
    user_name: Mapped[str] = mapped_column(String(100), server_default="")  # the name at the time of the request


class Webhook(Base):
    """An address that receives messages about alerts and about changes of runs. `cursor`: the last event that was delivered, or
    put into `notifications`."""

    __tablename__ = "webhooks"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    url: Mapped[str] = mapped_column(String(500))
    events: Mapped[list[str]] = mapped_column(Json)
    cursor: Mapped[dict[str, Any]] = mapped_column(Json)
    failures: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # consecutive failed deliveries
    last_error: Mapped[str] = mapped_column(String(300), server_default="")
    created_at: Mapped[float] = mapped_column(Float(53))
    format: Mapped[str] = mapped_column(String(10), server_default="json")  # json, slack, discord, teams, ntfy, email
    last_sent_at: Mapped[float | None] = mapped_column(Float(53))  # time of the last delivery, also of a failed one
    last_answer: Mapped[str] = mapped_column(String(300), server_default="")  # what the receiver answered to it


class NotificationRow(Base):
    """A message about one run and one kind of event: it waits, or it was sent, or the reason why it was not sent.

    Events of the same webhook, run and kind are counted in one waiting row, so that many alerts become one message.
    """

    __tablename__ = "notifications"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    webhook_id: Mapped[int] = mapped_column(Id)  # the webhook may have been deleted since
    destination: Mapped[str] = mapped_column(String(200))  # the webhook's address without its secret part
    run_id: Mapped[int] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    kind: Mapped[str] = mapped_column(String(60))  # a kind of alert, or run.<status>, run.found
    severity: Mapped[str] = mapped_column(String(10))  # critical, warning, info; the worst of its events
    count: Mapped[int] = mapped_column(Integer)  # number of events
    first_at: Mapped[float] = mapped_column(Float(53))  # when its first event happened
    last_at: Mapped[float] = mapped_column(Float(53))  # when its newest event happened
    step: Mapped[int] = mapped_column(BigInteger)  # the step of the newest of its worst events, as are its words
    message: Mapped[str] = mapped_column(Text)
    state: Mapped[str] = mapped_column(String(10))  # waiting, sent, failed, silenced, inhibited
    due_at: Mapped[float] = mapped_column(Float(53))  # when it is to be sent; later events may prolong this
    due_by: Mapped[float] = mapped_column(Float(53))  # the latest time to which they prolong it
    sent_at: Mapped[float | None] = mapped_column(Float(53))  # when its state was decided
    repeat_at: Mapped[float | None] = mapped_column(Float(53))  # when a lasting alert is sent again; None: never
    repeated: Mapped[int] = mapped_column(Integer, server_default=text("0"))  # number of messages before it about the same alert
    tries: Mapped[int] = mapped_column(Integer, server_default=text("0"))
    answer: Mapped[str] = mapped_column(String(300), server_default="")  # what the receiver answered, or why it was not sent
    __table_args__ = (
        Index("ix_notifications_webhook_id_state", "webhook_id", "state"),
        Index("ix_notifications_webhook_id_repeat_at", "webhook_id", "repeat_at"),
    )


class SilenceRow(Base):
    """Keeps back, until a time, every message that matches all of its conditions; a condition that is None matches everything."""

    __tablename__ = "silences"
    id: Mapped[int] = mapped_column(Id, primary_key=True)
    run_id: Mapped[int | None] = mapped_column(Id, ForeignKey("runs.id", ondelete="CASCADE"), index=True)
    project: Mapped[str | None] = mapped_column(String(200))
    kind: Mapped[str | None] = mapped_column(String(60))
    until: Mapped[float] = mapped_column(Float(53))
    created_at: Mapped[float] = mapped_column(Float(53))
    created_by: Mapped[str] = mapped_column(String(200), server_default="")  # name of the user
