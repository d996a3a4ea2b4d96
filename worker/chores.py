"""Two threads of the worker with the lowest priority. One compacts ended runs, the other removes the folders of deleted
runs."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path
from typing import Any

from server.database.connection import Database
from server.keep.folders import remove_deleted
from server.series.compaction import SETTLED_SECONDS, compact_next
from worker.writer import DATABASE_AWAY

POLL_SECONDS = 20.0
LOWEST_PRIORITY = 19
PAUSE_SECONDS = 0.05  # pause between two batches, in seconds, so that other threads can use the database

log = logging.getLogger(__name__)


class Chore(threading.Thread):
    """Calls `work` after `delay` seconds, then every `poll` seconds until `stop` is set. An error ends only the current
    call. niceness: of the thread alone."""

    def __init__(
        self, name: str, stop: threading.Event, *, delay: float, poll: float, niceness: int = LOWEST_PRIORITY
    ) -> None:  # fmt: skip
        super().__init__(name=name, daemon=True)
        self._stopping, self._delay, self._poll, self._niceness = stop, delay, poll, niceness

    def run(self) -> None:
        if sys.platform == "linux" and self._niceness:
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), self._niceness)  # lowers only this thread's priority
        self._stopping.wait(self._delay)
        while not self._stopping.is_set():
            try:
                self.work()
            except DATABASE_AWAY as error:
                log.warning("%s waits, database away: %s", self.name, error.args[0])
            except Exception:
                log.exception("%s failed", self.name)
            self._stopping.wait(self._poll)

    def work(self) -> None:
        raise NotImplementedError


class Compactor(Chore):
    """Merges the short blocks of ended runs. It is safe for two workers to compact the same run."""

    def __init__(
        self, database: Database, stop: threading.Event, *, poll: float = POLL_SECONDS, settled: float = SETTLED_SECONDS
    ) -> None:
        super().__init__("compactor", stop, delay=poll, poll=poll)
        self._database, self._settled = database, settled
        self._failed: set[int] = set()  # runs whose compaction failed; a worker that starts later tries them again

    def work(self) -> None:
        options: dict[str, Any] = {"settled": self._settled, "pause": self._pause, "failed": self._failed}
        while not self._stopping.is_set() and (run_id := compact_next(self._database, **options)):
            log.info("compacted", extra={"run": run_id})

    def _pause(self) -> bool:
        return self._stopping.wait(PAUSE_SECONDS)


class Cleaner(Chore):
    """Removes the folders of deleted runs from this machine, including runs deleted while this worker was not running."""

    def __init__(self, database: Database, data_dir: Path, stop: threading.Event, *, poll: float = POLL_SECONDS) -> None:
        super().__init__("cleaner", stop, delay=0.0, poll=poll)
        self._database, self._data_dir = database, data_dir

    def work(self) -> None:
        remove_deleted(self._database, self._data_dir, pause=self._stopping.is_set)
