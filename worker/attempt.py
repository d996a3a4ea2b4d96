"""One attempt at one run, inside the training process: resume from a checkpoint, train, send heartbeats, store the outcome."""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from server.checkpoint_store import CheckpointStore, StoreError
from server.database.connection import Database
from server.lifecycle import transitions as lifecycle
from server.lifecycle.event_wakeups import Publish
from server.settings import run_folder
from stablessm_core.report.messages import EndMessage
from stablessm_core.spec.config import parse_config
from stablessm_core.spec.forking import ForkError
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.detectors.raised_elsewhere import NO_PROGRESS, WORKER_UNFIT
from worker.exit_causes import LEASE_LOST
from worker.failures import fills_disk
from worker.pipe import Message
from worker.redaction import Redactor
from worker.writer import DATABASE_AWAY, Writer

HEARTBEAT_SECONDS = 2.0
STORE_SECONDS = 5.0
CLOSE_SECONDS = 5.0
FETCH_SECONDS = 15.0
FETCH_PAUSE_SECONDS = 0.5

log = logging.getLogger(__name__)


class Attempt:
    """One attempt at one run. `assignment` is the worker's message: run, attempt, configuration, checkpoints (newest first),
    folders and addresses. `database` and `publish` serve every run of the process.

    Raises ConfigError for a configuration that this worker does not support, such as a task from a package that is not
    installed.
    """

    def __init__(self, assignment: Message, database: Database, publish: Publish) -> None:
        self.run_id, self.number = int(assignment["run_id"]), int(assignment["attempt"])
        self.config = parse_config(assignment["config"])
        self._assignment = assignment
        self._data_dir = Path(assignment["data_dir"])
        self._folder = run_folder(self._data_dir, self.run_id)
        self.database = database
        self.writer = Writer(
            self.database,
            self.run_id,
            self.number,
            data_dir=self._data_dir,
            outbox=spool_path(self._data_dir, self.run_id, self.number),
            outbox_bytes=int(assignment["spool_bytes"]),
            publish=publish,
            on_lease_lost=_exit_lease_lost,
            recorded=[step for step, _, _ in reversed(assignment["checkpoints"])],
            autopsy=bool(assignment["autopsies"]),
        )
        self._stop: Literal["cancel", "drain"] | None = None
        self._why_drain = ""
        self._progress_at = time.monotonic()
        self._ending, self._closed = False, threading.Event()
        self._heart = threading.Thread(target=self._heartbeats, name="heartbeat", daemon=True)
        self._heart.start()

    def request_stop(self, stop: Literal["cancel", "drain"], why: str = "") -> None:
        """Stop after the current step: "cancel" ends the run, "drain" lets another worker resume the run. A cancel overrides a
        drain. why: the problem of this machine that the drain is for; an alert reports it."""
        if why:
            self._why_drain = why
            self.writer.alert(WORKER_UNFIT.alert(step=self.writer.step, message=why))
        if self._stop != "cancel":
            self._stop = stop

    def run(self, on_ready: Callable[[], None]) -> str:
        """Train until the run ends or stops, store how it ended, and return its status ("queued" after a drain)."""
        from stablessm_core.training.train import train  # the worker imports this module, and must not import torch

        def ready(environment: dict[str, Any]) -> None:
            redacted = Redactor(self._data_dir, Path(self._assignment["data_root"])).redact_values(environment)
            log.info("training on %s, to step %d", redacted["device_name"], self.config.train.steps)
            self.writer.environment(redacted)
            on_ready()

        newest = self._newest_checkpoint()
        outcome = train(
            self.config,
            sink=self.writer,
            data_root=Path(self._assignment["data_root"]),
            checkpoint_dir=checkpoint_folder(self._data_dir, self.run_id, self.number),
            resume=newest,
            fork=None if newest else self._origin(),
            should_stop=self._should_stop,
            on_ready=ready,
        )
        status = "queued" if outcome.status == "drained" else outcome.status
        reason = outcome.reason or _reason(outcome.status, outcome.divergence, self._why_drain)
        log.info("training ended: %s", reason or outcome.status)
        self._ending = True
        self.writer.finish(EndMessage(status, reason, outcome.result, outcome.divergence))
        return status

    def close(self) -> None:
        """End the threads of the attempt, after its end is stored."""
        self._closed.set()
        for thread in (self._heart, self.writer.thread):
            thread.join(CLOSE_SECONDS)

    def save_records(self) -> None:
        """After a failure, store the telemetry that was recorded before the failure: in the database if that takes at most
        STORE_SECONDS, otherwise on disk."""
        self.writer.wait_stored(STORE_SECONDS)
        self.writer.save_for_later()

    def _should_stop(self) -> str | None:
        # `train` calls this function once per step, so it also records the progress
        self._progress_at = time.monotonic()
        if self.writer.error is not None:
            raise self.writer.error
        while self.writer.full and self.writer.error is None and self._stop is None:
            time.sleep(0.1)
        return self._stop

    def _newest_checkpoint(self) -> Path | None:
        """The newest undamaged checkpoint, from this machine or from the checkpoint store. Deletes the recorded steps after
        it."""
        newest = self._assignment["checkpoints"][0][0] if self._assignment["checkpoints"] else 0
        for step, path, sha256 in self._assignment["checkpoints"]:
            file: Path = self._data_dir / path
            if problem := damage_of(file, sha256):
                patience = FETCH_SECONDS if step == newest else 0.0
                problem = self._fetch(path, file, sha256, patience=patience, here=problem)
            if problem:
                log.warning("checkpoint of step %d is not used: %s", step, problem)
                continue
            if step < newest:
                self.writer.truncate(step, f"checkpoint of step {newest} is missing or damaged")
            log.info("resuming after step %d, from its checkpoint", step)
            return file
        if newest:
            self.writer.truncate(self._begin, "every checkpoint is missing or damaged")
        return None

    def _origin(self) -> Path | None:
        """The checkpoint of another run from which this fork begins, on this machine or from the store. Raises ForkError."""
        origin = self._assignment.get("origin")
        if origin is None:
            return None
        what = f"the checkpoint of step {origin['step']} of run {origin['parent']}, from which this fork begins,"
        if origin["path"] is None:
            raise ForkError(f"{what} no longer exists: run {origin['parent']} was deleted, or trained again from an earlier step")
        file: Path = self._data_dir / origin["path"]
        if problem := damage_of(file, origin["sha256"]):
            # copied to a hidden file, which the worker removes after the attempt
            file = checkpoint_folder(self._data_dir, self.run_id, self.number) / f".origin-{origin['step']}.safetensors"
            problem = self._fetch(origin["path"], file, origin["sha256"], patience=FETCH_SECONDS, here=problem)
            if problem:
                raise ForkError(f"{what} is not available on this machine: {problem}")
        log.info("beginning after step %d, from the checkpoint of run %d", origin["step"], origin["parent"])
        return file

    @property
    def _begin(self) -> int:
        """The step after which a run without its own checkpoint begins: 0, or for a fork the step of the original's
        checkpoint."""
        return int((self._assignment.get("origin") or {"step": 0})["step"])

    def _fetch(self, path: str, file: Path, sha256: str, *, patience: float, here: str) -> str | None:
        """Copy a checkpoint from the store to `file`. Returns None on success, otherwise the reason for the failure.

        here: why the file on this machine cannot be used. patience: seconds to wait for a checkpoint that another machine may
        still be copying to the store.
        """
        if self._assignment.get("checkpoint_store") is None:
            return here
        store, until = CheckpointStore(self._assignment["checkpoint_store"]), time.monotonic() + patience
        while True:
            try:
                store.fetch(path, file, sha256)
            except (StoreError, OSError) as error:
                if fills_disk(error):
                    raise  # the checkpoint is intact, so the run must not begin again without it
                if time.monotonic() > until:
                    return f"{here}; {error}"
                time.sleep(FETCH_PAUSE_SECONDS)
            else:
                log.info("checkpoint copied from the checkpoint store: %s", path)
                return None

    def _heartbeats(self) -> None:
        limit, stalled_since = self.config.alerts.no_progress_seconds, None
        while not self._closed.is_set():
            try:
                with self.database.write() as session:
                    alive = lifecycle.heartbeat(session, self.run_id, self.number)
                if not alive and self._ending:
                    return  # the end is stored; if it is not, the writer finds that the lease is lost
                if not alive:
                    _exit_lease_lost()
            except DATABASE_AWAY as error:
                log.warning("no heartbeat, database away: %s", error)
            except Exception:  # without this thread, the run would be considered lost during training
                log.exception("no heartbeat")
            if limit is not None and time.monotonic() - self._progress_at > limit and stalled_since != self._progress_at:
                stalled_since = self._progress_at
                self.writer.alert(_no_progress(self.writer.step, limit))
            self._closed.wait(HEARTBEAT_SECONDS)


def checkpoint_folder(data_dir: Path, run_id: int, attempt: int) -> Path:
    """The checkpoint folder of one attempt. Each attempt has its own folder, because an attempt that lost its lease may still
    write while the next attempt trains."""
    return run_folder(data_dir, run_id) / "checkpoints" / f"attempt-{attempt}"


def spool_path(data_dir: Path, run_id: int, attempt: int) -> Path:
    return run_folder(data_dir, run_id) / "spool" / f"attempt-{attempt}"


def _exit_lease_lost() -> None:
    # exit at once, from any thread: the process must not finish the step, write a checkpoint or store anything
    log.warning("lease lost: another attempt owns the run, or the run has ended")
    logging.shutdown()
    os._exit(LEASE_LOST)


def damage_of(file: Path, sha256: str) -> str | None:
    """Why the file cannot be used as the checkpoint with this digest; None if it can."""
    try:
        with file.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        return str(error)
    return None if found == sha256 else f"{file} has SHA-256 {found}, expected {sha256}"


def _reason(status: str, divergence: dict[str, Any] | None, why_drain: str) -> str:
    if status == "diverged" and divergence:
        where = "" if divergence.get("layer") is None else f", layer {divergence['layer']}"
        where += "" if divergence.get("eigenvalue") is None else f", eigenvalue {divergence['eigenvalue']}"
        return f"{divergence.get('tensor')} is {divergence.get('value')} at step {divergence.get('step')}{where}"
    return {"cancelled": "cancelled", "drained": f"drained: {why_drain or 'its worker was asked to stop'}"}.get(status, "")


def _no_progress(step: int, seconds: float) -> Alert:
    return NO_PROGRESS.alert(step=step, message=f"no training step has ended for {seconds:g} s")
