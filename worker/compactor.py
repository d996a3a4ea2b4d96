"""A thread of the worker, of the lowest priority, that merges the many short blocks of ended runs."""

from __future__ import annotations

import logging
import os
import sys
import threading

from server.database.connection import Database
from server.series.compaction import SETTLED_SECONDS, compact_next
from worker.writer import DATABASE_AWAY

LOOK_SECONDS = 20.0
PAUSE_SECONDS = 0.05  # between two batches, so that others get at the database

log = logging.getLogger(__name__)


class Compactor(threading.Thread):
    """Every worker may have one: two that compact the same run do no harm. Ends when `stop` is set."""

    def __init__(
        self, database: Database, stop: threading.Event, *, look: float = LOOK_SECONDS, settled: float = SETTLED_SECONDS
    ) -> None:
        super().__init__(name="compactor", daemon=True)
        self._database, self._stopping, self._look = database, stop, look
        self._settled = settled

    def run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone
        while not self._stopping.wait(self._look):
            try:
                while not self._stopping.is_set() and (
                    run_id := compact_next(self._database, settled=self._settled, pause=self._pause)
                ):
                    log.info("compacted", extra={"run": run_id})
            except DATABASE_AWAY as error:
                log.warning("compaction waits, database away: %s", error.args[0])
            except Exception:
                log.exception("compaction failed")

    def _pause(self) -> bool:
        return self._stopping.wait(PAUSE_SECONDS)
