"""Stores what the program of a reported run posts: all records of a post in one transaction, under the fence of its attempt.

A post locks the run's row once. It may be repeated: steps that are stored already change nothing. A post also counts as a
heartbeat, and it sets a lost run back to running. A post for a run that has ended completes the run's numbers; it changes
neither the status nor the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Table, bindparam, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.access.scopes import INGEST
from server.access.tokens import Principal
from server.database.connection import Database
from server.database.models import Run, SeriesRow
from server.errors import FENCED, Conflict, Forbidden, NotFound, Unavailable
from server.lifecycle import transitions as lifecycle
from server.lifecycle.event_wakeups import Publish
from server.lifecycle.reported import REPORTED, found
from server.lifecycle.submitters import check_own
from server.series.catalogue_rules import catalogue_problem, compute_every_series, name_problem
from server.series.layout import Layout
from server.series.metrics import TooManyMetrics, add_metrics, joined_metrics
from server.series.received import STATE, PlacesCache, RunState, StoredPlaces, ends_with, insert_event
from server.series.recording import add_series, take_back
from server.series.rules import block_alerts
from stablessm_core.telemetry.frames import BadFrame
from stablessm_core.telemetry.free_json import Refused
from stablessm_core.telemetry.messages import CatalogueMessage, EndMessage, EnvironmentMessage, MetricsMessage, TruncateMessage
from stablessm_core.telemetry.metrics import MAX_METRICS, METRIC_GROUPS
from stablessm_core.telemetry.series import LAYER_GROUPS, SeriesSpec, source_group
from stablessm_core.telemetry.statuses import FINAL, LOST
from stablessm_core.telemetry.strict_messages import MAX_COLUMNS, PackedBlock, PackedFlush, Received

RECORDED_APART = LAYER_GROUPS, METRIC_GROUPS  # what the bound on scalars does not count
MAX_WAITING = 64 << 20  # bytes of the posts that wait or are being stored; further posts are refused
LEAST = 64 << 10  # bytes that a small post counts
THREADS = {"sqlite": 2, "postgresql": 4}  # on SQLite, one thread checks the next post while the other one stores
_TABLE = cast(Table, Run.__table__)
_RUN = _TABLE.c
_LOCK = (
    select(
        _RUN.id, _RUN.status, _RUN.seq, _RUN.attempt, _RUN.kind, _RUN.submitted_by, _RUN.user_id, _RUN.deleted_at, _RUN.rules
    )
    .where(_RUN.id == bindparam("run"))
    .with_for_update()
)  # fmt: skip
_STATE = select(*STATE).where(_RUN.id == bindparam("run"))
_BEAT = update(_TABLE).where(_RUN.id == bindparam("run")).values(beat=_RUN.beat + 1).returning(*STATE)


@dataclass(frozen=True)
class Stored:
    """What a post left behind. seq: the number of the run's newest event. stored_through: the last stored step.
    stop_requested: True if somebody asked the run to stop. changed: True if the post added an event."""

    seq: int
    stored_through: int
    stop_requested: bool
    changed: bool = False


class Reports:
    """Stores posts in its own threads, so that waiting posts keep no thread from other requests.

    On SQLite, which has one writer, posts wait for each other here: a lock is passed on at once, and SQLite's retries are not.
    """

    def __init__(self, database: Database, publish: Publish) -> None:
        self.database, self._publish = database, publish
        self._places = PlacesCache()
        self.threads = ThreadPoolExecutor(THREADS[database.dialect], "reports")
        self._waiting = 0  # bytes; only the event loop changes it
        self._turn: AbstractContextManager[Any] = threading.Lock() if database.dialect == "sqlite" else nullcontext()

    def store(self, run_id: int, attempt: int, principal: Principal, messages: Sequence[Received]) -> Stored:
        """Store all messages, or none of them. No messages: a heartbeat.

        Raises BadFrame for a message that the run cannot have, Conflict with the code `fenced` if `attempt` is not the run's
        newest attempt, NotFound, Forbidden.
        """
        with self._turn, self.database.write() as session:
            post = _Post(session, run_id, attempt, principal, self._places)
            post.apply(messages)
            stored = post.finish()
        post.keep_places(stored.seq)
        if stored.changed:
            self.announce(run_id)
        return stored

    def check_room(self, size: int = 0) -> None:
        """Raises Unavailable if too many posts wait for one more of `size` bytes."""
        if self._waiting + max(LEAST, size) > MAX_WAITING:
            raise Unavailable("too many posts wait already; try again", headers={"Retry-After": "2"})

    @contextmanager
    def room(self, size: int) -> Iterator[None]:
        """Count a post of this many bytes as waiting. Raises Unavailable if too many posts wait already."""
        self.check_room(size)
        self._waiting += max(LEAST, size)
        try:
            yield
        finally:
            self._waiting -= max(LEAST, size)

    def close(self) -> None:
        """End the threads after the posts that they store now."""
        self.threads.shutdown(cancel_futures=True)

    def announce(self, run_id: int) -> None:
        """Tell all servers that the run has new events."""
        self._publish(run_id)


class _Post:
    """One post inside its transaction."""

    def __init__(self, session: Session, run_id: int, attempt: int, principal: Principal, cache: PlacesCache) -> None:
        self.session, self.run_id, self.attempt, self._cache = session, run_id, attempt, cache
        self._places: StoredPlaces | None = None
        row = session.connection().execute(_LOCK, {"run": run_id}).one_or_none()
        if row is None:
            raise NotFound(f"there is no run {run_id}", field="run_id")
        check_reporter(principal, row)
        if row.deleted_at is not None:
            raise NotFound(f"run {run_id} is in the trash", field="run_id")
        if row.attempt != attempt:
            raise Conflict(
                f"attempt {attempt} of run {run_id} is over: the run was opened again as attempt {row.attempt}", code=FENCED,
                field="X-Attempt", allowed=f"{row.attempt}, from the program that opened the run last",
            )  # fmt: skip
        self._seq_before, self._rules = row.seq, bool(row.rules)
        self._late, self._untouched = row.status in FINAL, row.status != LOST
        self._state: RunState | None = None  # after the last event of this post, if nothing has followed
        if row.status == LOST:
            found(session, self._row())

    def apply(self, messages: Sequence[Received]) -> None:
        """Store the messages in order. Flushes and metrics between two other messages become one event each. Raises BadFrame."""
        flushes: list[PackedFlush] = []
        metrics: list[tuple[int, MetricsMessage]] = []
        blocks: list[PackedBlock] = []
        for index, message in enumerate([*messages, None]):
            try:
                match message:
                    case PackedFlush():
                        blocks += [b for i, b in enumerate(message.blocks) if self._accept(f"blocks.{i}", b)]
                        flushes.append(message)
                    case MetricsMessage():
                        metrics.append((index, message))
                    case _:
                        self._insert(flushes, blocks)
                        self._add_metrics(metrics)
                        flushes, metrics, blocks = [], [], []
                        if message is not None:
                            self._apply(message, messages[index + 1 :])
            except Refused as refused:
                raise BadFrame(index, refused.field, refused.given, refused.allowed) from None

    def finish(self) -> Stored:
        """The state after the post, which counts as a heartbeat of a run that has not ended."""
        state = self._state
        if state is None:
            self.session.flush()
            statement = _STATE if self._late else _BEAT
            state = RunState(*self.session.connection().execute(statement, {"run": self.run_id}).one())
        return Stored(state.seq, state.step, state.cancel_requested, state.seq != self._seq_before)

    def keep_places(self, seq: int) -> None:
        if self._places is not None:
            self._cache.keep(self.run_id, self._places, seq)

    def _insert(self, flushes: list[PackedFlush], blocks: list[PackedBlock]) -> None:
        if flushes:
            raised = block_alerts(self.session, self._row(), blocks) if self._rules else []
            self._state = insert_event(self.session, self.run_id, self.attempt, blocks, flushes, raised, late=self._late)
            self._untouched = False

    def _apply(self, message: Received, rest: Sequence[Received]) -> None:
        self._state, self._untouched = None, False
        match message:
            case CatalogueMessage():
                self._add_series(message.series)
            case EnvironmentMessage():
                self._row().environment = message.facts
            case TruncateMessage():
                self._take_back(message, [one for one in rest if isinstance(one, PackedFlush)])
                self._known().read_steps(self.session, self.run_id)
            case EndMessage() if not self._late:
                end = (message.status, message.reason, message.result, message.divergence)
                lifecycle.finish(self.session, self.run_id, self.attempt, *end)
                self._late = True
                if message.ended_at is not None:
                    run = self._row()
                    run.finished_at = max(message.ended_at, run.started_at or 0.0)

    def _take_back(self, message: TruncateMessage, later: Sequence[PackedFlush]) -> None:
        run = self._row()
        stored_again = ends_with(self.session, run, later)  # then this post is a repeat
        before = run.seq
        seq = take_back(self.session, run, message.to_step + 1, message.reason, stored_again=stored_again)
        if self._late and seq != before:
            run.compacted_at = run.judged_at = None

    def _add_series(self, series: Sequence[SeriesSpec]) -> None:
        for i, one in enumerate(series):
            if (problem := name_problem(one.name, one.group, derived=one.derived)) is not None:
                raise Refused(f"series.{i}", f"impossible: {problem}", "a layer's series is named after its group: ssm/0/weight")
        try:
            add_series(self.session, self._row(), series)
        except ValueError as error:
            raise Refused("series", f"another one: {error}", "the series that the run has, and further groups") from None
        columns = SeriesRow.__table__.columns
        rows = [dict(row) for row in self.session.execute(select(*columns).where(SeriesRow.run_id == self.run_id)).mappings()]
        if (problem := catalogue_problem(rows)) is not None:
            raise Refused("series", f"impossible: {problem}", "series that fit together")
        if (total := sum(row["width"] for row in rows)) > MAX_COLUMNS:
            raise Refused("series", f"{total:,} columns", f"at most {MAX_COLUMNS:,} columns in a run")
        scalars = sum(row["width"] for row in rows if not row["group_name"].startswith(RECORDED_APART))
        if scalars > MAX_METRICS:
            raise Refused("series", f"{scalars:,} columns of scalars", f"at most {MAX_METRICS:,} outside the layers")
        try:
            compute_every_series(Layout(self.session, self.run_id), {source_group(one.group) for one in series})
        except SQLAlchemyError:
            raise
        except Exception as error:  # whatever a reader raises would be an error of the server on a page
            raise Refused(
                "series", f"impossible: {str(error)[:200]}", "series from which every derived series follows"
            ) from error
        self._known().read_catalogue(self.session, self.run_id)

    def _add_metrics(self, metrics: Sequence[tuple[int, MetricsMessage]]) -> None:
        for message in joined_metrics([message for _, message in metrics]):
            run = self._row()
            seq = run.seq
            try:
                add_metrics(self.session, run, message)
            except TooManyMetrics as error:
                allowed = f"at most {MAX_METRICS:,} metrics in a run"
                raise BadFrame(metrics[-1][0], "values", f"too many: {error}", allowed) from None
            if self._late and run.seq != seq:
                run.compacted_at = run.judged_at = None
            self._state, self._untouched = None, False

    def _accept(self, field: str, block: PackedBlock) -> bool:
        known = self._known()
        if not known.knows(block):
            known.read_catalogue(self.session, self.run_id)  # another process may have added the group
        return known.accept(field, block)

    def _known(self) -> StoredPlaces:
        if self._places is None:
            seq = self._seq_before if self._untouched else self._row().seq
            self._places = self._cache.take(self.session, self.run_id, seq)
        return self._places

    def _row(self) -> Run:
        """The run's row as it is now, which this transaction has locked."""
        self.session.flush()
        chosen = select(Run).where(Run.id == self.run_id).execution_options(populate_existing=True)
        return self.session.scalars(chosen).one()


def check_reporter(principal: Principal, run: Any) -> None:
    """Check that the principal may report this run. Raises Forbidden, and Conflict for a run that our workers train.

    run: a run or a row with its columns id, kind, submitted_by and user_id. A token of the scope ingest may write only the runs
    that it opened.
    """
    if principal.scope == INGEST and run.submitted_by != principal.token_id:
        raise Forbidden(f"run {run.id} was opened with another token", field="run_id", allowed="runs that this token opened")
    check_own(principal, run)
    if run.kind != REPORTED:
        raise Conflict(f"run {run.id} is trained by our workers", field="run_id", allowed="runs of POST /api/ingest/runs")
