"""A thread of the worker, of the lowest priority, that removes the folders of deleted runs from this machine."""

from __future__ import annotations

import logging
import os
import sys
import threading
from pathlib import Path

from server.database.connection import Database
from server.runs.folders import remove_deleted
from worker.writer import DATABASE_AWAY

LOOK_SECONDS = 20.0

log = logging.getLogger(__name__)


class Cleaner(threading.Thread):
    """Looks when it starts, for what was deleted while this machine was away, then again and again until `stop` is set."""

    def __init__(self, database: Database, data_dir: Path, stop: threading.Event, *, look: float = LOOK_SECONDS) -> None:
        super().__init__(name="cleaner", daemon=True)
        self._database, self._data_dir, self._stopping, self._look = database, data_dir, stop, look

    def run(self) -> None:
        if sys.platform == "linux":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)  # of this thread alone
        while not self._stopping.is_set():
            try:
                remove_deleted(self._database, self._data_dir, pause=self._stopping.is_set)
            except DATABASE_AWAY as error:
                log.warning("folders of deleted runs wait, database away: %s", error.args[0])
            except Exception:
                log.exception("folders of deleted runs cannot be removed")
            self._stopping.wait(self._look)
