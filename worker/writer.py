"""The recorder's sink in a training process. One thread stores all messages of the run, in order, under its fence.

The recorder hands over its messages and does not wait. While the database is unavailable, messages go to an outbox on disk and
training continues. They are stored later, in the same order and under the same fence, which ensures that no other attempt has
begun meanwhile. When the outbox is full, `full` is true and the trainer waits before its next step, so nothing is dropped.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from server.database import single_runs
from server.database.connection import Database
from server.database.fence import LeaseLost
from server.database.models import Run
from server.ingest.blocks import PlacesCache
from server.ingest.post import store
from server.lifecycle import verdicts
from server.lifecycle.event_wakeups import Publish
from stablessm_core.report.frames import read_file
from stablessm_core.report.messages import (
    CheckpointMessage,
    EndMessage,
    EnvironmentMessage,
    TelemetryMessage,
    TruncateMessage,
    catalogues,
    from_bytes,
    packed_message,
    parts,
    size_of,
    to_bytes,
)
from stablessm_core.report.outbox import Outbox
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import SPOOL_FULL
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush
from stablessm_core.telemetry.statuses import FINAL
from worker.write_statistics import WriteStatistics

KEPT_CHECKPOINTS = 2  # number of checkpoints to keep: the newest, and the previous one in case the newest is damaged
MEMORY_LIMIT_BYTES = 32 << 20  # if more bytes wait in memory, messages go to disk even while the database is available
RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0)
DATABASE_AWAY = single_runs.DATABASE_AWAY  # errors after which a retry may succeed

log = logging.getLogger(__name__)


class Writer:
    """Implements `ResumableSink`. outbox, outbox_bytes: the file in which messages wait, and its largest size. `on_lease_lost` is
    called from the writer's thread and must not return. autopsy: whether the run gets an autopsy if it diverges."""

    def __init__(
        self,
        database: Database,
        run_id: int,
        attempt: int,
        *,
        data_dir: Path,
        outbox: Path,
        outbox_bytes: int,
        publish: Publish,
        on_lease_lost: Callable[[], None],
        recorded: Sequence[int] = (),
        autopsy: bool = False,
    ) -> None:
        self.database, self.run_id, self.attempt = database, run_id, attempt
        self.step = 0  # the last training step that was recorded
        self.full = False  # True if outbox and memory are full; training must wait
        self.writes = WriteStatistics()
        self.error: Exception | None = None  # an error that retrying cannot fix, so the run fails with it
        self._autopsy = autopsy
        self._data_dir, self._publish, self._on_lease_lost = data_dir, publish, on_lease_lost
        self._places = PlacesCache()
        self._path, self._outbox_bytes = outbox, outbox_bytes
        self._outbox: Outbox | None = None  # open while messages wait on disk
        self._sent = 0  # bytes of the outbox that are stored
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
        for message in catalogues(series):
            self._put(message)

    def write(self, flush: Flush) -> None:
        self.step = max(self.step, flush.step)
        for part in parts(flush):
            self._put(part)

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
            self._changed.wait_for(lambda: self.error or self._ended or not (self._waiting or self._outbox), timeout)

    def save_for_later(self) -> None:
        """Move waiting messages from memory to disk. The worker stores them after this process has ended."""
        with self._changed:
            self._spill()

    # The queue is the outbox followed by memory. Spilling moves messages from the head of memory to the tail of the outbox.

    def _put(self, message: TelemetryMessage) -> None:
        with self._changed:
            self.writes.count_recorded(message)
            if self.error is not None:
                self.writes.count_dropped()
            self._waiting.append(message)
            self._waiting_bytes += size_of(message)
            if self._away or self._waiting_bytes > MEMORY_LIMIT_BYTES:
                self._spill()
            self._changed.notify_all()

    def _spill(self) -> None:
        # the caller has acquired the condition
        if self._outbox is None and self._waiting:
            self._path.unlink(missing_ok=True)
            about, limit = {"id": f"run {self.run_id}, attempt {self.attempt}"}, self._outbox_bytes
            self._outbox, self._sent = Outbox(self._path, about, log.error, file_bytes=limit, memory_bytes=0), 0
        while self._waiting and self._outbox is not None:
            if not self._outbox.append(to_bytes(self._waiting[0])):
                self._report_full("no room on the disk" if self._outbox.failed else f"it holds {self._outbox_bytes} bytes")
                break
            self._waiting_bytes -= size_of(self._waiting.popleft())
        self._close_empty_outbox()

    def _close_empty_outbox(self) -> None:
        if self._outbox is not None and self._sent == self._outbox.size:
            self._outbox.close(delete=True)
            self._outbox = None
        self.writes.numbers["spool_bytes"] = 0 if self._outbox is None else self._outbox.size - self._sent

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

    def _head(self) -> tuple[TelemetryMessage, int]:
        """The oldest message, and the bytes of its frame in the outbox; 0 if it waits in memory."""
        with self._changed:  # another thread may move the message from memory to the outbox
            if self._outbox is None:
                return self._waiting[0], 0
            data = self._outbox.read(self._sent, 0)
            record = next(read_file(BytesIO(data), len(data)), None)
            if record is None:
                raise OSError(f"{self._path} is damaged at byte {self._sent:,} of its frames")
            return from_bytes(record), len(data)

    def _run(self) -> None:
        failures = 0
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._outbox)
            try:
                message, size = self._head()
                self._store(message)
                self._after_store(message, size)
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
            log.warning("database away, telemetry goes to %s: %s", self._path, error)
        with self._changed:
            self._away = True
            self._spill()

    def _after_store(self, message: TelemetryMessage, size: int) -> None:
        """Forget a stored message. size: the bytes of its frame if it was read from the outbox; it may have moved there since."""
        if isinstance(message, TruncateMessage):
            self._recorded = [step for step in self._recorded if step <= message.to_step]
        if isinstance(message, CheckpointMessage):
            self._recorded = [step for step in self._recorded if step != message.step] + [message.step]
            log.info("checkpoint of step %d is stored", message.step)
            self._own_checkpoints += 1
            if self._own_checkpoints == KEPT_CHECKPOINTS:
                self._forget_earlier_attempts((self._data_dir / message.path).parent)
        with self._changed:
            if self._outbox is not None:
                self._sent += size or len(self._outbox.read(self._sent, 0))
                self._close_empty_outbox()
            else:
                self._waiting_bytes -= size_of(self._waiting.popleft())
            self.writes.count_stored(self.writes.numbers["spool_bytes"])
            if self._outbox is None:
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
        message = packed_message(message)  # compress before the row is locked
        verdict = verdict_at_end(self.database, self.run_id, message)  # reads the database before the row is locked
        with self.database.write() as session:
            post = store(session, self.run_id, self.attempt, message, self._places, verdict=verdict, autopsy=self._autopsy)
        if post is not None:
            post.keep_places()


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
