"""The regular work of every server: retention, purging the trash, removing folders of deleted runs, judging ended runs,
and reading the newest values of runs that older versions recorded."""

from __future__ import annotations

import logging
import threading
from functools import partial

from server.checkpoint_store import StoreError
from server.clock_jumps import ClockJumps
from server.database.connection import Database
from server.database.single_runs import NOT_OF_A_RUN, try_for_run
from server.keep.deletion import purge
from server.keep.folders import remove_deleted
from server.keep.retention import apply_retention
from server.keep.trash import due
from server.lifecycle.verdicts import AT_ONCE, judge_ended
from server.series.last_values import fill_last_values
from server.settings import Settings

LOOK_SECONDS = 60.0
MOST_RUNS = 200  # number of runs that are moved or purged before the database is queried again

log = logging.getLogger("stablessm.trash")


class Housekeeping:
    """A thread that does the regular work when it starts and then every `look` seconds."""

    def __init__(
        self, database: Database, settings: Settings, *, look: float = LOOK_SECONDS, clock: ClockJumps | None = None
    ) -> None:
        self.database, self.settings, self._look = database, settings, look
        self._clock = clock or ClockJumps()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="housekeeping", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float = 3.0) -> None:
        """Stop the thread. A busy thread stops before it handles the next run."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def round(self) -> None:
        """Do all the work once. If one kind of work fails, the others are still done. Raises DATABASE_AWAY, SchemaMismatch."""
        kinds = {"removing folders": self._clean, "judging": self._judge, "newest values": self._fill}
        if not self._clock.jumped():  # a wrong date must not make runs look old
            kinds = {"retention": self._retain, "purging": self._purge} | kinds
        for name, work in kinds.items():
            if self._stopping.is_set():
                return
            try:
                work()
            except NOT_OF_A_RUN:
                raise
            except Exception:
                log.exception("%s failed; the rest of this round of housekeeping continues", name)

    def _retain(self) -> None:
        while apply_retention(self.database, self.settings, most=MOST_RUNS) == MOST_RUNS and not self._stopping.is_set():
            pass

    def _purge(self) -> None:
        with self.database.read() as session:
            runs = due(session, self.settings.trash_hours, MOST_RUNS)
        for run_id in runs:
            if self._stopping.is_set():
                return
            try_for_run(run_id, "purging", partial(self._purge_run, run_id), None)

    def _purge_run(self, run_id: int) -> None:
        try:
            if purge(self.database, self.settings, run_id):
                log.info("deleted for good", extra={"run": run_id})
        except (StoreError, ValueError) as error:  # the store is unavailable, or its package is not installed
            log.warning("cannot delete it for good yet: %s", error, extra={"run": run_id})

    def _clean(self) -> None:
        remove_deleted(self.database, self.settings.data_dir, pause=self._stopping.is_set)

    def _judge(self) -> None:
        while judge_ended(self.database) == AT_ONCE and not self._stopping.is_set():
            pass

    def _fill(self) -> None:
        fill_last_values(self.database)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self.round()
            except NOT_OF_A_RUN as error:
                log.warning("housekeeping waits for the database: %s", str(error).partition("\n")[0])
            self._stopping.wait(self._look)
