"""A thread that copies recorded checkpoints to the checkpoint store, if there is one.

Training does not wait for this thread: a checkpoint is valid as soon as it is on this machine's disk and recorded. While the
store is unavailable, checkpoints remain on the disk of this machine. If this worker ends, the next worker on this machine
copies them.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from pathlib import Path

from sqlalchemy import Select, select, update

from server.checkpoint_store import CheckpointStore, StoreError
from server.database.connection import Database
from server.database.models import CheckpointRow
from worker.writer import DATABASE_AWAY, KEPT_CHECKPOINTS

POLL_SECONDS = 1.0
PAUSES = (1.0, 5.0, 30.0)  # pauses between two attempts while the store is unavailable, in seconds
SETTLED_SECONDS = 5.0  # the last checkpoint of a run is recorded at most this many seconds after the run's end

log = logging.getLogger(__name__)


class CheckpointUploads(threading.Thread):
    """Call `training` when a run begins on this worker, `ended` when the run ends, and `close` when the worker ends."""

    def __init__(self, database: Database, store: CheckpointStore, data_dir: Path) -> None:
        super().__init__(name="checkpoint-uploads", daemon=True)
        self._database, self._store, self._data_dir = database, store, data_dir
        # for each run that may have checkpoints to copy: the time until which new checkpoints may be recorded
        self._until: dict[int, float] = {}
        self._changed = threading.Condition()
        self._closing = self._looked = False
        self._failures = 0

    def training(self, run_id: int) -> None:
        with self._changed:
            self._until[run_id] = float("inf")

    def ended(self, run_id: int) -> None:
        with self._changed:
            self._until[run_id] = time.monotonic() + SETTLED_SECONDS
            self._changed.notify_all()

    def close(self, seconds: float) -> None:
        """Copy the remaining checkpoints, for at most `seconds`."""
        with self._changed:
            self._closing, self._looked = True, False
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._looked, seconds):
                log.warning("checkpoints wait on this disk for the next worker here: the checkpoint store is slow or away")

    def run(self) -> None:
        for run_id in _runs_with_checkpoints(self._data_dir):
            self._until.setdefault(run_id, 0.0)
        while True:
            with self._changed:
                closing, runs = self._closing, dict(self._until)
            settled = self._copy(runs)
            with self._changed:
                for run_id in settled:
                    if self._until.get(run_id) == runs[run_id]:  # otherwise this worker has begun the run again meanwhile
                        del self._until[run_id]
                if closing and not self._failures:
                    self._looked = True
                    self._changed.notify_all()
                    return
                self._changed.wait(PAUSES[min(self._failures, len(PAUSES)) - 1] if self._failures else POLL_SECONDS)

    def _copy(self, runs: dict[int, float]) -> list[int]:
        """Copy the checkpoints of `runs` that the store lacks; returns the runs that cannot get further checkpoints."""
        settled = []
        try:
            for run_id, until in runs.items():
                over = time.monotonic() > until  # checked before copying, so that the next round copies later checkpoints
                self._copy_run(run_id)
                if over:
                    settled.append(run_id)
            self._failures = 0
        except StoreError as error:
            self._failed("checkpoint store", error)
        except DATABASE_AWAY as error:
            self._failed("database", error.args[0])
        except Exception:
            self._failures += 1
            log.exception("checkpoints are not copied")
        return settled

    def _failed(self, what: str, error: object) -> None:
        if not self._failures:
            log.warning("checkpoints wait on this disk, %s away: %s", what, error)
        self._failures += 1

    def _copy_run(self, run_id: int) -> None:
        with self._database.read() as session:
            rows = session.execute(_recorded(run_id)).all()
        waiting = [(path, sha256) for path, sha256, stored_at in rows if stored_at is None and (self._data_dir / path).is_file()]
        for path, sha256 in reversed(waiting):
            try:
                self._store.put(self._data_dir / path, path)
            except StoreError:
                if (self._data_dir / path).is_file():
                    raise
                continue  # a newer checkpoint has replaced this checkpoint meanwhile
            with self._database.write() as session:
                # also match the digest, because the file may have been overwritten since
                named = (CheckpointRow.run_id == run_id, CheckpointRow.path == path, CheckpointRow.sha256 == sha256)
                session.execute(update(CheckpointRow).where(*named).values(stored_at=time.time()))
        if waiting:
            self._forget_older(run_id)

    def _forget_older(self, run_id: int) -> None:
        stored = self._store.stored(run_id)  # listed before the rows are read, so that each new checkpoint in the list has a row
        with self._database.read() as session:
            kept = {path for path, *_ in session.execute(_recorded(run_id))}
        old = [path for path in stored if path not in kept]
        if old:
            with self._database.write() as session:
                named = (CheckpointRow.run_id == run_id, CheckpointRow.path.in_(old))
                session.execute(update(CheckpointRow).where(*named).values(stored_at=None))
            self._store.remove(old)


def _recorded(run_id: int) -> Select[str, str, float | None]:
    chosen = select(CheckpointRow.path, CheckpointRow.sha256, CheckpointRow.stored_at)
    return chosen.where(CheckpointRow.run_id == run_id).order_by(CheckpointRow.step.desc()).limit(KEPT_CHECKPOINTS)


def _runs_with_checkpoints(data_dir: Path) -> list[int]:
    found = {path.parts[-4] for path in (data_dir / "runs").glob("*/checkpoints/attempt-*/step-*.safetensors")}
    return sorted(int(name) for name in found if re.fullmatch(r"[0-9]{1,18}", name))
