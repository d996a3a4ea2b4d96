"""The server's own watch over heartbeats, so that the page tells the truth also where no worker is left to find a lost one.

It calls the function that workers call, on this process's own clock; any number of servers and workers may look side by side.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.database.revision import SchemaMismatch
from server.runs import lifecycle
from server.runs.worker_wakeups import wake_workers

log = logging.getLogger("stablessm.lookout")

TICK_SECONDS = 2.0


class Lookout:
    """One thread of one server process. `on_lost` is called in its event loop after a run was taken from its lost worker."""

    def __init__(self, database: Database, broker_url: str | None, lease: float, on_lost: Callable[[], None]) -> None:
        self.database, self.broker_url, self.on_lost = database, broker_url, on_lost
        self._reaper = lifecycle.Reaper(lease)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lookout", daemon=True)
        self._loop: asyncio.AbstractEventLoop | None = None

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(3)

    def _run(self) -> None:
        away = False
        while not self._stopping.wait(TICK_SECONDS):
            try:
                lost = self._reaper.tick(self.database)
                away = False
            except (SQLAlchemyError, SchemaMismatch) as error:  # after a gap every run gets a full lease again
                if not away:
                    log.warning("nobody here looks for lost workers, database away: %s", str(error).partition("\n")[0])
                away = True
                continue
            for one in lost:
                log.warning("worker lost, the run is %s now", one.status, extra={"run": one.run_id, "attempt": one.attempt})
                wake_workers(self.broker_url)
            if lost and self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self.on_lost)
