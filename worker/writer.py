"""The recorder's sink in a training process. One thread stores all messages of the run, in order, under its fence.

The recorder hands over its messages and does not wait. While the database is unavailable, messages go to a spool on disk and
training continues. They are stored later, in the same order and under the same fence, which ensures that no other attempt has
begun meanwhile. When the spool is full, `full` is true and the trainer waits before its next step, so nothing is dropped.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from server.database import single_runs
from server.database.connection import Database
from server.database.fence import LeaseLost
from server.database.models import Run
from server.lifecycle import transitions as lifecycle
from server.lifecycle import verdicts
from server.lifecycle.event_wakeups import Publish
from server.series import recording
from server.series.metrics import store_metrics
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import SPOOL_FULL
from stablessm_core.telemetry.messages import (
    CatalogueMessage,
    CheckpointMessage,
    EndMessage,
    EnvironmentMessage,
    MetricsMessage,
    TelemetryMessage,
    TruncateMessage,
    from_bytes,
    size_of,
    to_bytes,
)
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.spool import Spool
from stablessm_core.telemetry.statuses import FINAL
from worker.write_statistics import WriteStatistics

KEPT_CHECKPOINTS = 2  # number of checkpoints to keep: the newest, and the previous one in case the newest is damaged
MEMORY_LIMIT_BYTES = 32 << 20  # if more bytes wait in memory, messages go to disk even while the database is available
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
DATABASE_AWAY = single_runs.DATABASE_AWAY  # errors after which a retry may succeed

log = logging.getLogger(__name__)


class Writer:
    """Implements `ResumableSink`. `on_lease_lost` is called from the writer's thread and must not return. autopsy: whether
    the run gets an autopsy if it diverges."""

    def __init__(
        self,
        database: Database,
        run_id: int,
        attempt: int,
        *,
        data_dir: Path,
        spool: Spool,
        publish: Publish,
        on_lease_lost: Callable[[], None],
        recorded: Sequence[int] = (),
        autopsy: bool = False,
    ) -> None:
        self.database, self.run_id, self.attempt = database, run_id, attempt
        self.step = 0  # the last training step that was recorded
        self.full = False  # True if spool and memory are full; training must wait
        self.writes = WriteStatistics()
        self.error: Exception | None = None  # an error that retrying cannot fix, so the run fails with it
        self._autopsy = autopsy
        self._data_dir, self._spool, self._publish, self._on_lease_lost = data_dir, spool, publish, on_lease_lost
        self._waiting: deque[TelemetryMessage] = deque()
        self._waiting_bytes = 0
        self._away = self._ended = False
        self._own_checkpoints = 0
        self._recorded = list(recorded)  # steps of the checkpoints in the database, oldest first
        self._changed = threading.Condition()
        self.thread = threading.Thread(target=self._run, name="writer", daemon=True)  # ends after the end of the attempt
        self.thread.start()

    # the methods of ResumableSink follow

    def open(self, series: list[SeriesSpec]) -> None:
        self._put(CatalogueMessage(series))

    def write(self, flush: Flush) -> None:
        self.step = max(self.step, flush.step)
        self._put(flush)

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        relative = path.resolve().relative_to(self._data_dir).as_posix()
        self._put(CheckpointMessage(step, relative, sha256, path.stat().st_size))

    def truncate(self, to_step: int, reason: str) -> None:
        self.step = min(self.step, to_step)
        self._put(TruncateMessage(to_step, reason))

    def needed_checkpoints(self) -> list[int]:
        return self._recorded[-KEPT_CHECKPOINTS:]

    # the methods for the rest of the training process follow

    def environment(self, facts: dict[str, object]) -> None:
        self._put(EnvironmentMessage(facts))

    def alert(self, alert: Alert) -> None:
        self._put(Flush([], [alert], self.step, None))

    def finish(self, end: EndMessage) -> None:
        """Store how the attempt ended, after all other messages, however long the database is unavailable. Raises `error`."""
        self._put(end)
        self.wait_stored()
        if self.error:
            raise self.error

    def wait_stored(self, timeout: float | None = None) -> None:
        """Wait until every message is stored, or until `error` is set."""
        with self._changed:
            self._changed.wait_for(lambda: self.error or self._ended or not (self._waiting or len(self._spool)), timeout)

    def save_for_later(self) -> None:
        """Move waiting messages from memory to disk. The worker stores them after this process has ended."""
        with self._changed:
            self._spill()

    # The queue is the spool followed by memory. Spilling moves messages from the head of memory to the tail of the spool.

    def _put(self, message: TelemetryMessage) -> None:
        with self._changed:
            self.writes.count_recorded(message)
            if self.error is not None:
                self.writes.count_dropped()
            self._waiting.append(message)
            self._waiting_bytes += size_of(message)
            if self._away or self._waiting_bytes > MEMORY_LIMIT_BYTES:
                self._spill()
                self.writes.numbers["spool_bytes"] = len(self._spool)
            self._changed.notify_all()

    def _spill(self) -> None:
        # the caller has acquired the condition
        while self._waiting:
            try:
                fits, why = self._spool.append(to_bytes(self._waiting[0])), f"it holds {self._spool.limit_bytes} bytes"
            except OSError as error:
                fits, why = False, error.strerror or type(error).__name__
            if not fits:
                self._report_full(why)
                return
            self._waiting_bytes -= size_of(self._waiting.popleft())

    def _report_full(self, why: str) -> None:
        if self.full:
            return
        self.full = True
        message = f"database away and spool full ({why}): training waits until it can be stored; nothing is dropped"
        log.error(message)
        alert = SPOOL_FULL.alert(step=self.step, message=message)
        self._waiting.append(Flush([], [alert], self.step, None))
        self.writes.count_recorded(self._waiting[-1])
        self._waiting_bytes += size_of(self._waiting[-1])

    def _head(self) -> TelemetryMessage:
        with self._changed:  # another thread may move the message from memory to the spool
            spooled = self._spool.first()
            return self._waiting[0] if spooled is None else from_bytes(spooled)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or len(self._spool))
            try:
                message = self._head()
                self._store(message)
                self._after_store(message)
            except LeaseLost as error:
                log.warning("lease lost, nothing more is written: %s", error)
                self._on_lease_lost()
                return
            except DATABASE_AWAY as error:
                self._spool_waiting(error, first=failures == 0)
                time.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1
                continue
            except Exception as error:
                log.exception("telemetry cannot be stored")
                with self._changed:
                    self.error = error
                    self.writes.count_dropped()
                    self._changed.notify_all()
                return
            failures = 0
            self._publish(self.run_id)
            if isinstance(message, EndMessage):
                with self._changed:
                    self._ended = True
                    self._changed.notify_all()
                return

    def _spool_waiting(self, error: Exception, *, first: bool) -> None:
        if first:
            log.warning("database away, telemetry goes to %s: %s", self._spool.path, error)
        with self._changed:
            self._away = True
            self._spill()
            self.writes.numbers["spool_bytes"] = len(self._spool)

    def _after_store(self, message: TelemetryMessage) -> None:
        if isinstance(message, TruncateMessage):
            self._recorded = [step for step in self._recorded if step <= message.to_step]
        if isinstance(message, CheckpointMessage):
            self._recorded = [step for step in self._recorded if step != message.step] + [message.step]
            log.info("checkpoint of step %d is stored", message.step)
            self._own_checkpoints += 1
            if self._own_checkpoints == KEPT_CHECKPOINTS:
                self._forget_earlier_attempts((self._data_dir / message.path).parent)
        with self._changed:
            if len(self._spool):
                self._spool.drop()
            else:
                self._waiting_bytes -= size_of(self._waiting.popleft())
            self.writes.count_stored(len(self._spool))
            if not len(self._spool):
                if self._away:
                    log.info("database back, everything is stored")
                self._away = self.full = False
            self._changed.notify_all()

    def _forget_earlier_attempts(self, own: Path) -> None:
        # this attempt has just held the fence, so no folder of a later attempt can exist
        for folder in own.parent.glob("attempt-*") if own.name == f"attempt-{self.attempt}" else ():
            if folder != own:
                shutil.rmtree(folder, ignore_errors=True)

    def _store(self, message: TelemetryMessage) -> None:
        verdict = verdict_at_end(self.database, self.run_id, message)  # reads the database before the row is locked
        with self.database.write() as session:
            store(session, self.run_id, self.attempt, message, verdict, autopsy=self._autopsy)


def verdict_at_end(database: Database, run_id: int, message: TelemetryMessage) -> dict[str, Any] | None:
    """The verdict on a run that ends with this message; None if the run does not end. Also None if the verdict fails; the
    server then computes it later."""
    if not isinstance(message, EndMessage) or message.status not in FINAL:
        return None
    ending = {"status": message.status, "reason": message.reason, "divergence": message.divergence}
    try:
        with database.read() as session:
            run = session.get(Run, run_id)
            return None if run is None else verdicts.verdict_columns(session, run, ending=ending)
    except DATABASE_AWAY:
        raise
    except Exception:  # the run must end despite the error
        log.exception("the verdict on the run cannot be computed")
        return None


def store(
    session: Session, run_id: int, attempt: int, message: TelemetryMessage, verdict: dict[str, Any] | None = None, *,
    autopsy: bool = False,
) -> None:  # fmt: skip
    """Store one message under its fence. Storing the same message twice is harmless. verdict: the verdict, if the message ends
    the run. autopsy: whether a run that ends as diverged gets an autopsy. Raises LeaseLost."""
    match message:
        case Flush():
            rate = message.steps_per_second
            recording.store_flush(session, run_id, attempt, message.blocks, message.alerts, message.step, rate, message.so_far)
        case MetricsMessage():
            store_metrics(session, run_id, attempt, message)
        case CatalogueMessage():
            recording.store_catalogue(session, run_id, attempt, message.series)
        case CheckpointMessage():
            recording.store_checkpoint(session, run_id, attempt, message.step, message.path, message.sha256, message.size)
        case TruncateMessage():
            recording.truncate(session, run_id, attempt, message.to_step + 1, message.reason)
        case EnvironmentMessage():
            lifecycle.set_environment(session, run_id, attempt, message.facts)
        case EndMessage(status="queued"):
            lifecycle.release(session, run_id, attempt, message.reason)
        case EndMessage():
            end = (message.status, message.reason, message.result, message.divergence)
            lifecycle.finish(session, run_id, attempt, *end, verdict, autopsy)
