"""One post: messages of an attempt, stored in one transaction that has locked the run's row.

Programs that report a run, and our workers, store their messages here. A worker stores under the fence of its attempt: once
another attempt has begun, or the run has ended, it writes nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import Table, bindparam, select, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from server.database.fence import LeaseLost
from server.database.models import Run, SeriesRow
from server.ingest.alerts import Catalogue, built_in_alerts, computes_alerts, last_alerts
from server.ingest.blocks import PlacesCache, StoredPlaces
from server.lifecycle import transitions as lifecycle
from server.lifecycle.reported import REPORTED, found
from server.series.catalogue_rules import catalogue_problem, compute_every_series, name_problem
from server.series.layout import Layout
from server.series.metrics import TooManyMetrics, add_metrics, joined_metrics
from server.series.recording import STATE, RunState, add_series, insert_event, is_stored, store_checkpoint, take_back
from server.series.rules import block_alerts
from stablessm_core.report.frames import BadFrame
from stablessm_core.report.messages import (
    CatalogueMessage,
    CheckpointMessage,
    EndMessage,
    EnvironmentMessage,
    MetricsMessage,
    TelemetryMessage,
    TruncateMessage,
)
from stablessm_core.telemetry.blocks import PackedBlock, packed
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.free_json import Refused
from stablessm_core.telemetry.metrics import MAX_METRICS, METRIC_GROUPS
from stablessm_core.telemetry.series import LAYER_GROUPS, SeriesSpec, source_group
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.statuses import FINAL, LOST

RECORDED_APART = LAYER_GROUPS, METRIC_GROUPS  # what the bound on scalars does not count
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


def locked_row(session: Session, run_id: int) -> Any:
    """The columns of a run on which a post depends, locked until the end of the transaction; None if there is no such run."""
    return session.connection().execute(_LOCK, {"run": run_id}).one_or_none()


def store(
    session: Session, run_id: int, attempt: int, message: TelemetryMessage, places: PlacesCache | None = None, *,
    verdict: Mapping[str, Any] | None = None, autopsy: bool = False,
) -> Post | None:  # fmt: skip
    """Store a message of our own worker under the fence of its attempt. Storing the same message twice is harmless.

    places: remembers what is stored of the run; call `keep_places` of the returned post after the commit. verdict: if the message
    ends the run. autopsy: whether a run that ends as diverged gets an autopsy. Raises LeaseLost, and BadFrame for a message that
    a run cannot have.
    """
    match message:
        case CheckpointMessage():
            store_checkpoint(session, run_id, attempt, message.step, message.path, message.sha256, message.size)
        case EndMessage(status="queued"):
            lifecycle.release(session, run_id, attempt, message.reason)
        case EndMessage():
            end = (message.status, message.reason, message.result, message.divergence)
            lifecycle.finish(session, run_id, attempt, *end, verdict, autopsy)
        case _:
            row = locked_row(session, run_id)
            if row is None or row.attempt != attempt or row.status != "running":
                raise LeaseLost(f"run {run_id} is not running under attempt {attempt}")
            post = Post(session, row, PlacesCache() if places is None else places)
            post.apply([message])
            post.finish()
            return post
    return None


class Post:
    """Messages of one attempt inside a transaction. row: the `locked_row` of the run, whose attempt the caller has checked.

    The catalogue and the payloads of our own worker are trusted, because the same code has made them; its blocks are compared
    with the catalogue and the stored steps like any others.
    """

    def __init__(self, session: Session, row: Any, cache: PlacesCache) -> None:
        self.session, self.run_id, self.attempt, self._cache = session, row.id, row.attempt, cache
        self._places: StoredPlaces | None = None
        self._reported = row.kind == REPORTED
        self._seq_before, self._rules = row.seq, self._reported and bool(row.rules)
        self._late, self._untouched = row.status in FINAL, row.status != LOST
        self._state: RunState | None = None  # after the last event of this post, if nothing has followed
        if row.status == LOST:
            found(session, self._row())

    def apply(self, messages: Sequence[TelemetryMessage]) -> None:
        """Store the messages in order. Flushes and metrics between two other messages become one event each. Raises BadFrame."""
        flushes: list[Flush] = []
        metrics: list[tuple[int, MetricsMessage]] = []
        blocks: list[PackedBlock] = []
        for index, message in enumerate([*messages, None]):
            try:
                match message:
                    case Flush():
                        own = enumerate(map(packed, message.blocks))
                        blocks += [block for i, block in own if self._accept(f"blocks.{i}", block)]
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
            state = self._state = RunState(*self.session.connection().execute(statement, {"run": self.run_id}).one())
        return Stored(state.seq, state.step, state.cancel_requested, state.seq != self._seq_before)

    def keep_places(self) -> None:
        """Remember what is stored. Only after `finish` and the commit: whoever commits next might take the same event number."""
        if self._places is not None and self._state is not None:
            self._cache.keep(self.run_id, self._places, self._state.seq)

    def _insert(self, flushes: list[Flush], blocks: list[PackedBlock]) -> None:
        if flushes:
            raised = self._alerts(flushes, blocks) if self._reported else []
            self._state = insert_event(self.session, self.run_id, self.attempt, blocks, flushes, raised, late=self._late)
            self._untouched = False

    def _alerts(self, flushes: Sequence[Flush], blocks: Sequence[PackedBlock]) -> list[Alert]:
        """The alerts that the server raises: those of the run's rules, and the built-in ones if the program computes none."""
        raised = block_alerts(self.session, self._row(), blocks) if self._rules else []
        known = self._known()
        if known.own_alerts:
            return raised
        run = self._row()
        if known.catalogue is None:
            known.catalogue = Catalogue(self.session, run)
        found = built_in_alerts(self.session, run, known.catalogue, flushes, blocks)
        known.own_alerts = found is None
        return raised + (found or [])

    def _apply(self, message: TelemetryMessage, rest: Sequence[TelemetryMessage]) -> None:
        self._state, self._untouched = None, False
        match message:
            case CatalogueMessage():
                self._add_series(message.series)
            case EnvironmentMessage():
                run = self._row()
                if computes_alerts(run.environment) != computes_alerts(message.facts):
                    run.detector_state, self._known().own_alerts = None, False
                run.environment = message.facts
            case TruncateMessage():
                self._take_back(message, [one for one in rest if isinstance(one, Flush)])
                self._known().read_steps(self.session, self.run_id)
            case EndMessage() if not self._late:
                if raised := last_alerts(self.session, run := self._row()):
                    insert_event(self.session, self.run_id, self.attempt, [], [Flush([], raised, run.step, None)])
                end = (message.status, message.reason, message.result, message.divergence)
                lifecycle.finish(self.session, self.run_id, self.attempt, *end)
                self._late = True
                if message.ended_at is not None:
                    run = self._row()
                    run.finished_at = max(message.ended_at, run.started_at or 0.0)

    def _take_back(self, message: TruncateMessage, later: Sequence[Flush]) -> None:
        run = self._row()
        blocks = [packed(block) for flush in later for block in flush.blocks]
        stored_again = bool(blocks) and run.step == max(flush.step for flush in later) and is_stored(self.session, run.id, blocks)
        before = run.seq
        seq = take_back(self.session, run, message.to_step + 1, message.reason, stored_again=stored_again)
        if self._late and seq != before:
            run.compacted_at = run.judged_at = None

    def _add_series(self, series: Sequence[SeriesSpec]) -> None:
        try:
            if self._reported:
                self._add_checked_series(series)
            else:
                add_series(self.session, self._row(), series)
        except ValueError as error:
            if isinstance(error, Refused):
                raise
            raise Refused("series", f"another one: {error}", "the series that the run has, and further groups") from None
        self._known().read_catalogue(self.session, self.run_id)

    def _add_checked_series(self, series: Sequence[SeriesSpec]) -> None:
        for i, one in enumerate(series):
            if (problem := name_problem(one.name, one.group, derived=one.derived)) is not None:
                raise Refused(f"series.{i}", f"impossible: {problem}", "a layer's series is named after its group: ssm/0/weight")
        add_series(self.session, self._row(), series)
        columns = SeriesRow.__table__.columns
        rows = [dict(row) for row in self.session.execute(select(*columns).where(SeriesRow.run_id == self.run_id)).mappings()]
        if (problem := catalogue_problem(rows)) is not None:
            raise Refused("series", f"impossible: {problem}", "series that fit together")
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
