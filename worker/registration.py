"""Keeps the worker's row in the database: its capabilities and its heartbeat."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import update

from server.database.connection import Database
from server.database.models import Worker
from server.database.revision import SchemaMismatch
from server.lifecycle import transitions as lifecycle
from server.settings import Settings
from stablessm_core.spec.data_sets import available_data, is_absent
from worker.pipe import Message
from worker.redaction import Redactor
from worker.write_statistics import Numbers
from worker.writer import DATABASE_AWAY

HEARTBEAT_SECONDS = 2.0
SCHEMA_SECONDS = 0.2
DATA_SECONDS = 30.0  # time between two checks of the data sets, in seconds; an unchanged file needs only one stat call

log = logging.getLogger(__name__)


class Registration(threading.Thread):
    """Registers the worker and sends its heartbeats until `stop` is set. `Lanes.close` removes the row.

    fixed: capabilities that do not change ("queues"). on_schema: called once, when the database has the schema that this
    program needs. statistics: returns the sums of this worker's writes, which the worker's row contains for /metrics.
    quarantine: returns why this worker claims no runs, as an entry of its capabilities, or nothing.
    """

    def __init__(
        self,
        database: Database,
        settings: Settings,
        worker: dict[str, Any],
        fixed: Message,
        *,
        stop: threading.Event,
        statistics: Callable[[], Numbers],
        quarantine: Callable[[], Message],
        on_schema: Callable[[], None],
    ) -> None:
        super().__init__(name="worker-heartbeat", daemon=True)
        self._database, self._data_root, self._worker, self._fixed = database, settings.data_root, worker, fixed
        self._redactor = Redactor(settings.data_dir, settings.data_root)
        self._stopping, self._statistics, self._quarantine, self._on_schema = stop, statistics, quarantine, on_schema
        self._machine: Message = {}  # what the training processes report about the machine
        self._data: dict[str, str] | None = None  # data set -> its state, which may change while the worker runs
        self._data_at = float("-inf")
        self._data_known = threading.Event()
        self._changed = threading.Event()
        self._registered: Message | None = None

    def set_machine(self, machine: Message) -> None:
        """Set a training process's report about this machine, or {"problem"} if no training process can start. Changes are
        stored at once."""
        if machine != self._machine:
            self._machine = machine
            self._changed.set()

    def lacks_data(self, name: str) -> bool:
        """True if the data set is missing now. Checks all data sets, so that this worker claims no further run that needs it."""
        self._look_at_data()
        self._changed.set()
        return bool(name) and is_absent((self._data or {}).get(name))

    def report(self) -> None:
        """Store this worker's row soon, because something in it has changed."""
        self._changed.set()

    def wait_data_known(self, timeout: float) -> None:
        """Wait until the database has the required schema and the data sets are known, or until `wake` is called."""
        self._data_known.wait(timeout)

    def wake(self) -> None:
        """End every wait, because the worker stops."""
        self._changed.set()
        self._data_known.set()

    def capabilities(self) -> Message | None:
        """The capabilities of this worker, which determine the runs that it claims. None until all capabilities are known."""
        if not self._shown() or "problem" in self._machine:
            return None
        return self._shown()

    def _shown(self) -> Message | None:
        if self._data is None or not self._machine:
            return None
        return self._machine | self._fixed | {"data": self._data}

    def run(self) -> None:
        schema_fits = False
        while not self._stopping.is_set():
            self._changed.clear()
            try:
                if not schema_fits:
                    self._wait_for_schema()
                    if self._stopping.is_set():
                        return
                    schema_fits = True
                    self._on_schema()
                self._beat()
            except DATABASE_AWAY as error:
                log.warning("no heartbeat, database away: %s", error.args[0])
            except Exception:
                log.exception("no heartbeat")
            self._changed.wait(HEARTBEAT_SECONDS)

    def _look_at_data(self) -> None:
        found: dict[str, str] = self._redactor.redact_values(available_data(self._data_root))
        self._data, self._data_at = found, time.monotonic()

    def _beat(self) -> None:
        if time.monotonic() - self._data_at > DATA_SECONDS:
            self._look_at_data()
            self._data_known.set()
        known = self._shown()
        if known is None:
            return
        known |= self._quarantine()
        with self._database.write() as session:
            if known != self._registered or not lifecycle.beat_worker(session, self._worker["worker_id"]):
                lifecycle.register_worker(session, **self._worker, capabilities=known)
            if (writes := self._statistics())["values_recorded"]:
                shown = known | {"writes": writes}  # the sums are only for /metrics
                session.execute(update(Worker).where(Worker.id == self._worker["worker_id"]).values(capabilities=shown))
        self._registered = known

    def _wait_for_schema(self) -> None:
        # the server may start together with this worker and still be migrating the schema
        logged = False
        while not self._stopping.is_set():
            try:
                self._database.check_schema()
                return
            except SchemaMismatch as error:
                why = str(error)
            except DATABASE_AWAY as error:
                why = str(error.args[0])
            if not logged:
                log.info("waiting for the database: %s", why)
                logged = True
            self._stopping.wait(SCHEMA_SECONDS)
