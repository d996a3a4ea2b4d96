"""Supervises one claimed run: gives it to a training process, watches the process, and stores how the run ended if the process
cannot store it."""

from __future__ import annotations

import logging
import shutil
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from server.database.connection import Database
from server.database.fence import LeaseLost, lock_run
from server.database.models import Run
from server.ingest.post import store
from server.keep.folders import installation_name, mark
from server.lifecycle import transitions as lifecycle
from server.lifecycle.event_wakeups import Publish
from server.lifecycle.logs import store_traceback
from server.settings import Settings, run_folder
from stablessm_core.report.messages import TelemetryMessage, from_bytes
from stablessm_core.report.outbox import left_behind
from stablessm_core.spec.config import parse_config
from stablessm_core.telemetry.detectors.raised_elsewhere import TRAINER_CRASHED, WORKER_UNFIT
from stablessm_core.telemetry.sink import Flush
from worker.attempt import checkpoint_folder, spool_path
from worker.exit_causes import LEASE_LOST, describe_exit, kernel_memory_kills, one_line
from worker.pipe import Message
from worker.quarantine import Kind, Quarantine, memory_is_short
from worker.redaction import Redactor
from worker.run_log import LogShipper
from worker.training_process import TrainingProcess
from worker.write_statistics import WriteTotals
from worker.writer import DATABASE_AWAY

CHECK_SECONDS = 0.25  # time between two reads of the run's row, in seconds; a read shows whether a cancel was requested
CANCEL_SECONDS = 1.0  # time limit for the step in progress after a cancel, in seconds
ROOM_SECONDS = 60.0  # the same after the disk has become nearly full, which does not end the worker, in seconds
DRAIN_SECONDS = 5.0  # time limit for the step in progress and a checkpoint after the worker was asked to stop, in seconds
EXIT_SECONDS = 3.0  # time limit for a process to end after the end of its run is stored, in seconds
RETRY_SECONDS = 1.0
RETURNS_RUN = ("disk", "memory", "data")  # faults that another machine does not have; a run may cause a fault of the GPU itself

log = logging.getLogger(__name__)


@dataclass
class Supervision:
    """Supervises one run. `stop` is set when the worker is asked to stop."""

    claim: lifecycle.Claim
    process: TrainingProcess
    database: Database
    settings: Settings
    spool_bytes: int
    publish: Publish
    stop: threading.Event
    totals: WriteTotals
    quarantine: Quarantine
    lacks_data: Callable[[str], bool]  # True if the data set with this name is missing on this machine now
    _stop_request: str | None = None  # "cancel" or "drain"
    _kill_at: float | None = None
    _failure: str | None = None  # the exception that the training process reported
    _fault: Kind | None = None  # the part of this machine that the exception blames
    _why_drain: str = ""  # the problem of this machine for which the run is drained
    _traceback: str = ""
    _waits: bool = False  # True if the process waits for another run
    _settled: bool = False  # True if nothing is left to store: the run's end is in the database, or another attempt owns the run
    _memory_kills: int = field(default_factory=kernel_memory_kills)

    def __post_init__(self) -> None:
        self._redactor = Redactor(self.settings.data_dir, self.settings.data_root)
        path = run_folder(self.settings.data_dir, self.claim.run_id) / "log.txt"
        self._log = LogShipper(self.database, self.claim.run_id, self.claim.attempt, path, self._redactor)

    def run(self) -> bool:
        """Supervise the run until the run's row contains how it ended. True if the process waits for another run; otherwise the
        process has ended."""
        folder = run_folder(self.settings.data_dir, self.claim.run_id)
        self._mark(folder)
        self._log.start()
        shutil.rmtree(folder / "spool", ignore_errors=True)  # left by earlier attempts, whose steps this attempt trains again
        try:
            self.process.start_run(self._assignment(str(folder / "log.txt")), folder / "log.txt")
            self._follow()
        except (EOFError, OSError):
            pass  # the process has ended; its exit code shows why
        finally:
            code = 0 if self._waits else self.process.end(EXIT_SECONDS)
            self.totals.ended(self.claim.run_id, self.claim.attempt)
            self._remove_drafts()
        if code == LEASE_LOST:
            log.warning("lease lost: another attempt owns the run, or the run has ended", extra=self._log_fields)
        elif not self._settled:
            self._store_end(code)
        self._log.finish(wait=EXIT_SECONDS if self.stop.is_set() else 0.0)
        self.publish(self.claim.run_id)
        return self._waits

    def _mark(self, folder: Path) -> None:
        try:
            mark(folder, installation_name(self.database))
        # the mark may fail, because the run's checkpoints also identify the folder
        except (*DATABASE_AWAY, OSError) as error:
            log.warning("the run's folder cannot be marked as this installation's: %s", error, extra=self._log_fields)

    @property
    def _log_fields(self) -> dict[str, int]:
        return {"run": self.claim.run_id, "attempt": self.claim.attempt}

    def _assignment(self, log_path: str) -> Message:
        return {
            "run_id": self.claim.run_id,
            "attempt": self.claim.attempt,
            "config": self.claim.config,
            "checkpoints": [[c.step, c.path, c.sha256] for c in self.claim.checkpoints],
            "origin": self._origin(),
            "data_dir": str(self.settings.data_dir),
            "data_root": str(self.settings.data_root),
            "checkpoint_store": self.settings.checkpoint_store,
            "database_url": self.settings.database_url,
            "broker_url": self.settings.broker_url,
            "spool_bytes": self.spool_bytes,
            "autopsies": self.settings.autopsy,
            "log": log_path,
        }

    def _origin(self) -> Message | None:
        origin = self.claim.origin
        if origin is None:
            return None
        at = origin.checkpoint
        return {"parent": origin.parent, "step": origin.step, "path": at and at.path, "sha256": at and at.sha256}

    def _follow(self) -> None:
        check_at = time.monotonic()
        while True:
            next_at = check_at if self._kill_at is None else min(check_at, self._kill_at)
            message = self.process.pipe.receive(timeout=max(0.0, next_at - time.monotonic()))
            if message is not None:
                self._receive(message)
                if self._waits:
                    return
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            if time.monotonic() >= check_at:
                if message is None and not self.process.is_alive():
                    # The training process has ended, but a process that it started keeps the pipe open. The last messages may
                    # have arrived after the wait above.
                    while (late := self.process.pipe.receive(timeout=0.0)) is not None:
                        self._receive(late)
                    return
                self._check_row()
                check_at = time.monotonic() + CHECK_SECONDS

    def _receive(self, message: Message) -> None:
        match message["event"]:
            case "writes":
                self.totals.update(self.claim.run_id, self.claim.attempt, message["numbers"])
            case "training":
                log.info("training", extra=self._log_fields)
            case "failed":
                self._failure, self._traceback = message["reason"], message.get("traceback", "")
                self._fault = message.get("fault")
                self._kill_by(time.monotonic() + 2 * EXIT_SECONDS)
            case "ended":
                self._settled = True
                self._kill_by(time.monotonic() + EXIT_SECONDS)
                if message["status"] in ("finished", "diverged"):
                    self.quarantine.trained()
                log.info("run %s", message["status"], extra=self._log_fields)
                # a stop request may still be on its way, and the process would apply it to its next run
                self._waits = message["waits"] and self._stop_request is None
                if message["waits"] and not self._waits:
                    self.process.kill()

    def _check_row(self) -> None:
        now = time.monotonic()
        if self.stop.is_set() and self._stop_request is None:
            self._request_stop("drain", now + DRAIN_SECONDS)
        elif self.stop.is_set() and self._why_drain:
            self._kill_by(now + DRAIN_SECONDS)  # the earliest deadline counts
        try:
            with self.database.read() as session:
                row = session.execute(
                    select(Run.status, Run.attempt, Run.cancel_requested).where(Run.id == self.claim.run_id)
                ).one_or_none()
        except DATABASE_AWAY:
            return  # while the database is unavailable, nobody can cancel or claim the run
        if row is None or (row.status, row.attempt) != ("running", self.claim.attempt):
            if not self._settled and (row is None or row.attempt != self.claim.attempt or row.status == "queued"):
                log.warning(
                    "this attempt no longer owns the run: another one does, or the run is queued or deleted",
                    extra=self._log_fields,
                )
            self._settled = True  # in each of these cases, this attempt's process has nothing left to do
            self._kill_by(now + EXIT_SECONDS)
        elif row.cancel_requested and self._stop_request != "cancel":
            self._request_stop("cancel", now + CANCEL_SECONDS)
        elif self._stop_request is None and self._failure is None and self.quarantine.lacks_room():
            reason = self.quarantine.reason
            self._why_drain = "" if reason is None else reason.reason
            self._request_stop("drain", now + ROOM_SECONDS)

    def _request_stop(self, what: str, deadline: float) -> None:
        log.info("asking the training process to stop: %s", what, extra=self._log_fields)
        self._stop_request = what
        self._kill_by(deadline)
        self.process.pipe.send({"stop": what, "why": self._why_drain if what == "drain" else ""})

    def _remove_drafts(self) -> None:
        # a process that was killed while writing a checkpoint leaves a hidden draft of up to several gigabytes
        folder = checkpoint_folder(self.settings.data_dir, self.claim.run_id, self.claim.attempt)
        for draft in folder.glob(".*"):
            try:
                draft.unlink(missing_ok=True)
            except OSError as error:
                log.warning("an unfinished checkpoint cannot be removed: %s", error, extra=self._log_fields)

    def _kill(self) -> None:
        self.process.kill()
        self._kill_at = None
        if self._stop_request == "cancel" and self._failure is None and not self._settled:
            # store the end first: the kernel may take seconds to free the memory of a large process
            self._store_end(-signal.SIGKILL)
            self._settled = True
            self.publish(self.claim.run_id)

    def _kill_by(self, deadline: float) -> None:
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)

    def _store_end(self, code: int) -> None:
        """Store the end of the run under its fence, for a process that could not do so. Waits until the database answers."""
        if self._failure is not None:
            reason = self._failure
        elif self._stop_request == "cancel":
            reason = "cancelled; the training step in progress was cut off"
        elif self._stop_request == "drain":
            why = self._why_drain or "its worker was asked to stop"
            reason = f"drained: {why}; the training step in progress was cut off"
        else:
            output = "\n".join(map(self._redactor.redact_log_line, self.process.last_output().splitlines()))
            killed_for_memory = kernel_memory_kills() > self._memory_kills
            self._fault = "memory" if killed_for_memory and code == -signal.SIGKILL else None
            reason = describe_exit(code, killed_for_memory, output)
        log.warning("%s", reason, extra=self._log_fields)
        blamed = self._blame(one_line(self._redactor.redact(reason)))
        self._store_spool()
        self._ship_log()
        shown, traceback = (
            one_line(self._redactor.redact(reason)),
            self._redactor.redact(self._traceback) or self._log.crash_report(),
        )
        self._persist(lambda session: self._write_end(session, shown, traceback, blamed))

    def _blame(self, reason: str) -> Kind | None:
        """The part of this machine because of which the run ended; None if the run itself may be the cause.

        A fault counts only while it lasts: other programs still use up the memory, or the data set is still missing.
        """
        kind = self._fault
        if kind == "memory" and not memory_is_short():
            return None
        if kind == "data" and not self.lacks_data(self._needed_data()):
            return None
        if kind is not None:
            self.quarantine.blame(kind, self.claim.run_id, reason)
        return kind

    def _needed_data(self) -> str:
        return parse_config(self.claim.config).task.data_needed()

    def _ship_log(self) -> None:
        try:
            # store the log before the run's end, because another attempt may begin afterwards
            self._retried(partial(self._log.ship, to_the_end=True))
        except Exception:  # storing the end of the run is more important than its log
            log.exception("the end of the log is not stored", extra=self._log_fields)

    def _write_end(self, session: Session, reason: str, traceback: str, blamed: Kind | None) -> None:
        run_id, attempt = self.claim.run_id, self.claim.attempt
        if traceback:
            lock_run(session, run_id, attempt)
            store_traceback(session, run_id, attempt, traceback)
        if blamed in RETURNS_RUN or (blamed is None and self._why_drain and self._failure is None):
            lifecycle.release(session, run_id, attempt, reason, alert=WORKER_UNFIT)
        elif self._failure is not None:
            if blamed is not None and self.quarantine.reason is not None:
                step = lock_run(session, run_id, attempt).step
                unfit = WORKER_UNFIT.alert(step=step, message=self.quarantine.reason.reason)
                store(session, run_id, attempt, Flush([], [unfit], step, None))
            lifecycle.finish(session, run_id, attempt, "failed", reason)
        elif self._stop_request == "cancel":
            lifecycle.finish(session, run_id, attempt, "cancelled", reason)
        else:
            lifecycle.release(session, run_id, attempt, reason, loss=TRAINER_CRASHED if self._stop_request is None else None)

    def _store_spool(self) -> None:
        # the process died while the database was unavailable; with the telemetry left on disk, those steps need not be trained
        # again
        for data in left_behind(spool_path(self.settings.data_dir, self.claim.run_id, self.claim.attempt)):
            if not self._persist(partial(_store_one, self.claim, from_bytes(data), self.settings.autopsy)):
                return

    def _persist(self, write: Callable[[Session], None]) -> bool:
        """Commit `write`, with retries. Returns False if this attempt lost the run or the worker must stop now, else True."""

        def commit() -> None:
            with self.database.write() as session:
                write(session)

        return self._retried(commit)

    def _retried(self, act: Callable[[], None]) -> bool:
        """Call `act` until it succeeds. Returns True, or False as in `_persist`."""
        give_up = time.monotonic() + RETRY_SECONDS  # a limit only while the worker must stop; the reaper then ends the run
        while True:
            try:
                act()
                return True
            except LeaseLost as error:
                log.warning("this attempt no longer owns the run: %s", error, extra=self._log_fields)
                return False
            except DATABASE_AWAY as error:
                if self.stop.is_set() and time.monotonic() > give_up:
                    log.error("the end of the run is not stored; the reaper will find the run: %s", error, extra=self._log_fields)
                    return False
                time.sleep(RETRY_SECONDS)


def _store_one(claim: lifecycle.Claim, message: TelemetryMessage, autopsy: bool, session: Session) -> None:
    store(session, claim.run_id, claim.attempt, message, autopsy=autopsy)
