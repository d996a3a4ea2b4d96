"""The recorder's sink in a training process: one thread stores everything the run records, in order, under its fence.

The recorder hands over and goes on. While the database is away records go to the spool on disk and training continues; when it is
back they are stored in the same order under the same fence: no other attempt can have begun meanwhile. When the spool is full
`full` says so, and the trainer waits before its next step: nothing is ever dropped.
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

from sqlalchemy.exc import InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.fence import LeaseLost
from server.database.models import FINAL, Run
from server.runs import lifecycle, verdicts
from server.series import recording
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import SPOOL_FULL
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sinks import Flush
from worker.notify import Publish
from worker.records import (
    CatalogueRecord,
    CheckpointRecord,
    EndRecord,
    EnvironmentRecord,
    Record,
    TruncateRecord,
    from_bytes,
    size_of,
    to_bytes,
)
from worker.spool import Spool
from worker.write_statistics import WriteStatistics

NEEDED = 2  # recorded checkpoints whose files stay: the newest, and the one before in case that is damaged
MEMORY_LIMIT_BYTES = 32 << 20  # more than this waiting also goes to disk
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
# The database cannot be reached or cannot write now; later it may. InternalError: a transaction that was ended because this
# process had been stopped in it, or a standby that is still read-only.
DATABASE_AWAY = (OperationalError, InterfaceError, InternalError, PoolTimeout)

log = logging.getLogger(__name__)


class Writer:
    """Implements the recorder's Sink. `on_lease_lost` is called from the writer's thread and must not return."""

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
    ) -> None:
        self.database, self.run_id, self.attempt = database, run_id, attempt
        self.step = 0  # last training step handed over
        self.full = False  # spool and memory: training should wait
        self.writes = WriteStatistics()
        self.error: Exception | None = None  # what no retry can cure; the run fails with it
        self._data_dir, self._spool, self._publish, self._on_lease_lost = data_dir, spool, publish, on_lease_lost
        self._waiting: deque[Record] = deque()
        self._waiting_bytes = 0
        self._away = False
        self._own_checkpoints = 0
        self._recorded = list(recorded)  # steps of the checkpoints in the database, oldest first
        self._changed = threading.Condition()
        threading.Thread(target=self._run, name="writer", daemon=True).start()

    # Sink

    def open(self, series: list[SeriesSpec]) -> None:
        self._put(CatalogueRecord(series))

    def write(self, flush: Flush) -> None:
        self.step = max(self.step, flush.step)
        self._put(flush)

    def checkpoint(self, step: int, path: Path, sha256: str) -> None:
        place = path.resolve().relative_to(self._data_dir).as_posix()
        self._put(CheckpointRecord(step, place, sha256, path.stat().st_size))

    def truncate(self, to_step: int, reason: str) -> None:
        self.step = min(self.step, to_step)
        self._put(TruncateRecord(to_step, reason))

    def needed(self) -> list[int]:
        return self._recorded[-NEEDED:]

    # For the rest of the training process

    def environment(self, facts: dict[str, object]) -> None:
        self._put(EnvironmentRecord(facts))

    def alert(self, alert: Alert) -> None:
        self._put(Flush([], [alert], self.step, None))

    def finish(self, end: EndRecord) -> None:
        """Store how the attempt ended, after everything else, however long the database is away; raises what no retry cures."""
        self._put(end)
        self.wait_stored()
        if self.error:
            raise self.error

    def wait_stored(self, timeout: float | None = None) -> None:
        """Until everything handed over so far is stored, or cannot be."""
        with self._changed:
            self._changed.wait_for(lambda: self.error or not (self._waiting or len(self._spool)), timeout)

    def save_for_later(self) -> None:
        """Put on disk what still waits in memory: this process ends, and its worker stores what it left behind."""
        with self._changed:
            self._spill()

    # The queue is spool + memory, in this order: what spills over leaves the head of memory for the tail of the spool.

    def _put(self, record: Record) -> None:
        with self._changed:
            self.writes.handed_over(record)
            if self.error is not None:
                self.writes.given_up()
            self._waiting.append(record)
            self._waiting_bytes += size_of(record)
            if self._away or self._waiting_bytes > MEMORY_LIMIT_BYTES:
                self._spill()
                self.writes.numbers["spool_bytes"] = len(self._spool)
            self._changed.notify_all()

    def _spill(self) -> None:
        # with the condition held
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
        self.writes.handed_over(self._waiting[-1])
        self._waiting_bytes += size_of(self._waiting[-1])

    def _head(self) -> Record:
        with self._changed:  # it may move from memory to the spool at any moment
            spooled = self._spool.first()
            return self._waiting[0] if spooled is None else from_bytes(spooled)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or len(self._spool))
            try:
                record = self._head()
                self._store(record)
                self._stored(record)
            except LeaseLost as error:
                log.warning("lease lost, nothing more is written: %s", error)
                self._on_lease_lost()
                return
            except DATABASE_AWAY as error:
                self._keep(error, first=failures == 0)
                time.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
                failures += 1
                continue
            except Exception as error:
                log.exception("telemetry cannot be stored")
                with self._changed:
                    self.error = error
                    self.writes.given_up()
                    self._changed.notify_all()
                return
            failures = 0
            self._publish(self.run_id)

    def _keep(self, error: Exception, *, first: bool) -> None:
        if first:
            log.warning("database away, telemetry goes to %s: %s", self._spool.path, error)
        with self._changed:
            self._away = True
            self._spill()
            self.writes.numbers["spool_bytes"] = len(self._spool)

    def _stored(self, record: Record) -> None:
        if isinstance(record, TruncateRecord):
            self._recorded = [step for step in self._recorded if step <= record.to_step]
        if isinstance(record, CheckpointRecord):
            self._recorded = [step for step in self._recorded if step != record.step] + [record.step]
            log.info("checkpoint of step %d is stored", record.step)
            self._own_checkpoints += 1
            if self._own_checkpoints == NEEDED:
                self._forget_earlier_attempts((self._data_dir / record.path).parent)
        with self._changed:
            if len(self._spool):
                self._spool.drop()
            else:
                self._waiting_bytes -= size_of(self._waiting.popleft())
            self.writes.stored(len(self._spool))
            if not len(self._spool):
                if self._away:
                    log.info("database back, everything is stored")
                self._away = self.full = False
            self._changed.notify_all()

    def _forget_earlier_attempts(self, own: Path) -> None:
        # under the fence that was just shown; a later attempt's folder cannot be there
        for folder in own.parent.glob("attempt-*") if own.name == f"attempt-{self.attempt}" else ():
            if folder != own:
                shutil.rmtree(folder, ignore_errors=True)

    def _store(self, record: Record) -> None:
        judged = judged_at_end(self.database, self.run_id, record)  # read before the row is locked
        with self.database.write() as session:
            store(session, self.run_id, self.attempt, record, judged)


def judged_at_end(database: Database, run_id: int, record: Record) -> dict[str, Any] | None:
    """What the verdict on the run says as it ends; None where there is none: then the server judges it later."""
    if not isinstance(record, EndRecord) or record.status not in FINAL:
        return None
    ending = {"status": record.status, "reason": record.reason, "divergence": record.divergence}
    try:
        with database.read() as session:
            run = session.get(Run, run_id)
            return None if run is None else verdicts.judged(session, run, ending=ending)
    except DATABASE_AWAY:
        raise
    except Exception:  # it must end all the same
        log.exception("no verdict on the run as it ended")
        return None


def store(session: Session, run_id: int, attempt: int, record: Record, judged: dict[str, Any] | None = None) -> None:
    """Store one record under its fence; repeating it changes nothing. judged: of the run's end. Raises LeaseLost."""
    match record:
        case Flush():
            rate = record.steps_per_second
            recording.store_flush(session, run_id, attempt, record.blocks, record.alerts, record.step, rate, record.so_far)
        case CatalogueRecord():
            recording.store_catalogue(session, run_id, attempt, record.series)
        case CheckpointRecord():
            recording.store_checkpoint(session, run_id, attempt, record.step, record.path, record.sha256, record.size)
        case TruncateRecord():
            recording.truncate(session, run_id, attempt, record.to_step + 1, record.reason)
        case EnvironmentRecord():
            lifecycle.set_environment(session, run_id, attempt, record.facts)
        case EndRecord(status="queued"):
            lifecycle.release(session, run_id, attempt, record.reason)
        case EndRecord():
            end = (record.status, record.reason, record.result, record.divergence)
            lifecycle.finish(session, run_id, attempt, *end, judged)
