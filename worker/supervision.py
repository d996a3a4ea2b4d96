"""Follows one claimed run: gives it to a training process, watches it, and stores how it ended when the process cannot."""

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
from server.database.fence import LeaseLost, hold
from server.database.models import Run
from server.runs import lifecycle
from server.runs.folders import installation_name, mark
from server.runs.logs import store_traceback
from server.settings import Settings, run_folder
from stablessm_core.telemetry.detectors.raised_elsewhere import TRAINER_CRASHED
from worker.attempt import checkpoint_folder, spool_path
from worker.exit_causes import LEASE_LOST, kernel_memory_kills, of_exit, one_line
from worker.notify import Publish
from worker.pipe import Message
from worker.records import Record, from_bytes
from worker.run_log import LogShipper
from worker.shown_text import ShownText
from worker.spool import left_behind
from worker.training_process import TrainingProcess
from worker.write_statistics import WriteTotals
from worker.writer import DATABASE_AWAY, store

LOOK_SECONDS = 0.25  # how soon a cancel is seen
CANCEL_SECONDS = 1.0  # how long the step in progress may still take after a cancel
DRAIN_SECONDS = 5.0  # the same, with a checkpoint, after the worker was asked to stop
EXIT_SECONDS = 3.0  # between a run's end in the database and the end of its process
RETRY_SECONDS = 1.0

log = logging.getLogger(__name__)


@dataclass
class Supervision:
    """Follows one run. `stop` is set when the worker is asked to go."""

    claim: lifecycle.Claim
    process: TrainingProcess
    database: Database
    settings: Settings
    spool_bytes: int
    publish: Publish
    stop: threading.Event
    totals: WriteTotals
    _asked: str | None = None  # "cancel" or "drain"
    _kill_at: float | None = None
    _failure: str | None = None  # the exception, as the training process named it
    _traceback: str = ""
    _over: bool = False  # its end is in the database, or another attempt owns the run
    _memory_kills: int = field(default_factory=kernel_memory_kills)

    def __post_init__(self) -> None:
        self._shown = ShownText(self.settings.data_dir, self.settings.data_root)
        path = run_folder(self.settings.data_dir, self.claim.run_id) / "log.txt"
        self._log = LogShipper(self.database, self.claim.run_id, self.claim.attempt, path, self._shown)

    def run(self) -> None:
        """Return when the process is gone and the run's row says how it ended."""
        folder = run_folder(self.settings.data_dir, self.claim.run_id)
        self._mark(folder)
        self._log.start()
        shutil.rmtree(folder / "spool", ignore_errors=True)  # of earlier attempts: this one trains those steps again
        try:
            self.process.start_run(self._order(str(folder / "log.txt")), folder / "log.txt")
            self._follow()
        except (EOFError, OSError):
            pass  # it is gone; its exit code says how
        finally:
            code = self.process.end(EXIT_SECONDS)
            self.totals.ended(self.claim.run_id, self.claim.attempt)
            self._remove_drafts()
        if code == LEASE_LOST:
            log.warning("lease lost, the run belongs to another attempt or is over", extra=self._log_fields)
        elif not self._over:
            self._store_end(code)
        self._log.finish(wait=EXIT_SECONDS if self.stop.is_set() else 0.0)
        self.publish(self.claim.run_id)

    def _mark(self, folder: Path) -> None:
        try:
            mark(folder, installation_name(self.database))
        except (*DATABASE_AWAY, OSError) as error:  # nothing that the run needs: its folder is known by its checkpoints, too
            log.warning("the run's folder does not say whose it is: %s", error, extra=self._log_fields)

    @property
    def _log_fields(self) -> dict[str, int]:
        return {"run": self.claim.run_id, "attempt": self.claim.attempt}

    def _order(self, log_path: str) -> Message:
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
            "log": log_path,
        }

    def _origin(self) -> Message | None:
        origin = self.claim.origin
        if origin is None:
            return None
        at = origin.checkpoint
        return {"parent": origin.parent, "step": origin.step, "path": at and at.path, "sha256": at and at.sha256}

    def _follow(self) -> None:
        look_at = time.monotonic()
        while True:
            next_at = look_at if self._kill_at is None else min(look_at, self._kill_at)
            message = self.process.pipe.receive(timeout=max(0.0, next_at - time.monotonic()))
            if message is not None:
                self._receive(message)
            if self._kill_at is not None and time.monotonic() >= self._kill_at:
                self._kill()
            if time.monotonic() >= look_at:
                if message is None and not self.process.alive():
                    return  # what it started holds the pipe open
                self._check_row()
                look_at = time.monotonic() + LOOK_SECONDS

    def _receive(self, message: Message) -> None:
        match message["event"]:
            case "writes":
                self.totals.update(self.claim.run_id, self.claim.attempt, message["numbers"])
            case "training":
                log.info("training", extra=self._log_fields)
            case "failed":
                self._failure, self._traceback = message["reason"], message.get("traceback", "")
                self._kill_by(time.monotonic() + 2 * EXIT_SECONDS)
            case "ended":
                self._over = True
                self._kill_by(time.monotonic() + EXIT_SECONDS)
                log.info("run %s", message["status"], extra=self._log_fields)

    def _check_row(self) -> None:
        now = time.monotonic()
        if self.stop.is_set() and self._asked is None:
            self._ask_to_stop("drain", now + DRAIN_SECONDS)
        try:
            with self.database.read() as session:
                row = session.execute(
                    select(Run.status, Run.attempt, Run.cancel_requested).where(Run.id == self.claim.run_id)
                ).one_or_none()
        except DATABASE_AWAY:
            return  # without the database the run can be neither cancelled nor taken
        if row is None or (row.status, row.attempt) != ("running", self.claim.attempt):
            if not self._over and (row is None or row.attempt != self.claim.attempt or row.status == "queued"):
                log.warning(
                    "the run is not ours any more: another attempt owns it, or it is queued or deleted", extra=self._log_fields
                )
            self._over = True  # ended by itself, or not ours any more: either way its process has nothing left to do
            self._kill_by(now + EXIT_SECONDS)
        elif row.cancel_requested and self._asked != "cancel":
            self._ask_to_stop("cancel", now + CANCEL_SECONDS)

    def _ask_to_stop(self, what: str, deadline: float) -> None:
        log.info("asking it to stop: %s", what, extra=self._log_fields)
        self._asked = what
        self._kill_by(deadline)
        self.process.pipe.send({"stop": what})

    def _remove_drafts(self) -> None:
        # A process killed while it wrote a checkpoint leaves a draft of up to gigabytes under a hidden name.
        folder = checkpoint_folder(self.settings.data_dir, self.claim.run_id, self.claim.attempt)
        for draft in folder.glob(".*"):
            try:
                draft.unlink(missing_ok=True)
            except OSError as error:
                log.warning("an unfinished checkpoint stays: %s", error, extra=self._log_fields)

    def _kill(self) -> None:
        self.process.kill()
        self._kill_at = None
        if self._asked == "cancel" and self._failure is None and not self._over:
            # Store the end first: the process runs no more, but the kernel may take seconds to free a large one's memory.
            self._store_end(-signal.SIGKILL)
            self._over = True
            self.publish(self.claim.run_id)

    def _kill_by(self, deadline: float) -> None:
        self._kill_at = deadline if self._kill_at is None else min(self._kill_at, deadline)

    def _store_end(self, code: int) -> None:
        """Write the end that the process could not write itself, under its own fence, once the database can be reached."""
        if self._failure is not None:
            reason = self._failure
        elif self._asked == "cancel":
            reason = "cancelled; the training step in progress was cut off"
        elif self._asked == "drain":
            reason = "drained: its worker was asked to stop; the training step in progress was cut off"
        else:
            output = "\n".join(map(self._shown.clean_line, self.process.last_output().splitlines()))
            reason = of_exit(code, kernel_memory_kills() > self._memory_kills, output)
        log.warning("%s", reason, extra=self._log_fields)
        self._store_spool()
        self._ship_log()
        shown, traceback = one_line(self._shown.clean(reason)), self._shown.clean(self._traceback) or self._log.crash_report()
        self._persist(lambda session: self._write_end(session, shown, traceback))

    def _ship_log(self) -> None:
        try:
            self._retried(partial(self._log.ship, to_the_end=True))  # another attempt may begin as soon as the end is stored
        except Exception:  # how the run ended is worth more than its log
            log.exception("the end of its log is not stored", extra=self._log_fields)

    def _write_end(self, session: Session, reason: str, traceback: str) -> None:
        run_id, attempt = self.claim.run_id, self.claim.attempt
        if traceback:
            hold(session, run_id, attempt)
            store_traceback(session, run_id, attempt, traceback)
        if self._failure is not None:
            lifecycle.finish(session, run_id, attempt, "failed", reason)
        elif self._asked == "cancel":
            lifecycle.finish(session, run_id, attempt, "cancelled", reason)
        else:
            lifecycle.release(session, run_id, attempt, reason, loss=TRAINER_CRASHED if self._asked is None else None)

    def _store_spool(self) -> None:
        # The process died while the database was away: what it left on disk saves that much training over again.
        for data in left_behind(spool_path(self.settings.data_dir, self.claim.run_id, self.claim.attempt)):
            if not self._persist(partial(_store_one, self.claim, from_bytes(data))):
                return

    def _persist(self, write: Callable[[Session], None]) -> bool:
        """True once `write` is committed; False when it is not ours to write any more, or the worker must go now."""

        def commit() -> None:
            with self.database.write() as session:
                write(session)

        return self._retried(commit)

    def _retried(self, act: Callable[[], None]) -> bool:
        """True once `act` has worked; False as above."""
        give_up = time.monotonic() + RETRY_SECONDS  # counts only once the worker is asked to go; then the reaper takes over
        while True:
            try:
                act()
                return True
            except LeaseLost as error:
                log.warning("the run is not ours any more: %s", error, extra=self._log_fields)
                return False
            except DATABASE_AWAY as error:
                if self.stop.is_set() and time.monotonic() > give_up:
                    log.error("its end is not stored, the reaper will find it: %s", error, extra=self._log_fields)
                    return False
                time.sleep(RETRY_SECONDS)


def _store_one(claim: lifecycle.Claim, record: Record, session: Session) -> None:
    store(session, claim.run_id, claim.attempt, record)
