"""What every server does by itself: retention, purging the trash, removing the folders of deleted runs, judging ended ones."""

from __future__ import annotations

import logging
import threading

from sqlalchemy.exc import SQLAlchemyError

from server.checkpoint_store import StoreError
from server.database.connection import Database
from server.database.revision import SchemaMismatch
from server.runs.deletion import purge
from server.runs.folders import remove_deleted
from server.runs.retention import apply_retention
from server.runs.trash import due
from server.runs.verdicts import AT_ONCE, judge_ended
from server.settings import Settings

LOOK_SECONDS = 60.0
MOST_RUNS = 200  # moved, and purged, at a time; then the database is looked at anew

log = logging.getLogger("stablessm.trash")


class Housekeeping:
    """A thread; begins at once, then every `look` seconds."""

    def __init__(self, database: Database, settings: Settings, *, look: float = LOOK_SECONDS) -> None:
        self.database, self.settings, self._look = database, settings, look
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float = 3.0) -> None:
        """End it, between two runs if it is at work."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def round(self) -> None:
        """All of it once. Raises SQLAlchemyError."""
        while apply_retention(self.database, self.settings, most=MOST_RUNS) == MOST_RUNS and not self._stopping.is_set():
            pass
        with self.database.read() as session:
            runs = due(session, self.settings.trash_hours, MOST_RUNS)
        for run_id in runs:
            if self._stopping.is_set():
                return
            try:
                if purge(self.database, self.settings, run_id):
                    log.info("deleted for good", extra={"run": run_id})
            except (StoreError, ValueError) as error:  # the store is away, or its package is not installed
                log.warning("it is deleted for good later: %s", error, extra={"run": run_id})
        remove_deleted(self.database, self.settings.data_dir, pause=self._stopping.is_set)
        while judge_ended(self.database) == AT_ONCE and not self._stopping.is_set():
            pass

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.round()
            except (SQLAlchemyError, SchemaMismatch) as error:
                log.warning("deleted runs wait, database away: %s", str(error).partition("\n")[0])
            except Exception:  # this thread must go on
                log.exception("deleted runs cannot be purged")
            self._stopping.wait(self._look)
