"""Puts running runs back into the queue if their worker has stopped sending heartbeats, and sets reported runs to `lost` if their
program has fallen silent. The server and every worker do this."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import select
from sqlalchemy.exc import SQLAlchemyError

from server.database.connection import Database
from server.database.fence import LeaseLost, lock_run
from server.database.models import Run
from server.database.revision import SchemaMismatch
from server.database.single_runs import try_for_run
from server.lifecycle import transitions as lifecycle
from server.lifecycle.reported import REPORTED, TRAINED, mark_lost
from server.lifecycle.worker_wakeups import wake_workers
from stablessm_core.telemetry.detectors.raised_elsewhere import WORKER_LOST
from stablessm_core.telemetry.statuses import LOST

TICK_SECONDS = 2.0

log = logging.getLogger("stablessm.lost_runs")


@dataclass(frozen=True)
class LostRun:
    """A run whose worker or program was lost, and its status afterwards."""

    run_id: int
    attempt: int
    status: str


class LostRunReaper:
    """Finds lost runs. A run is lost if its (attempt, beat) has not changed for `lease_seconds` (a reported run: for
    `reported_lease_seconds`), measured with this process's monotonic clock.

    Wall clocks are never compared. After a gap in the observation (the database did not answer, or the machine slept), every
    run gets a full lease again. Any number of servers and workers may have a reaper: a lost run is put back into the queue only
    once. The reaper's thread calls `on_lost` with the id of each lost run.
    """

    def __init__(
        self,
        database: Database,
        lease_seconds: float,
        *,
        reported_lease_seconds: float = 60.0,
        broker_url: str | None = None,
        on_lost: Callable[[int], object] = lambda _run_id: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.database, self.lease_seconds, self.broker_url, self.on_lost = database, lease_seconds, broker_url, on_lost
        self._leases = {TRAINED: lease_seconds, REPORTED: reported_lease_seconds}
        self._clock = clock
        self._seen: dict[int, tuple[int, int, float]] = {}  # run -> (attempt, beat, time of the last change)
        self._last = clock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lost-run-reaper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, timeout: float = 3.0) -> None:
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def reap(self) -> list[LostRun]:
        """Check once and return the lost runs; call this at least every `lease_seconds / 3`. Raises SQLAlchemyError."""
        with self.database.read() as session:
            chosen = select(Run.id, Run.kind, Run.attempt, Run.beat).where(Run.status == "running")
            running = session.execute(chosen).all()
        now = self._clock()
        if now - self._last > min(self._leases.values()) / 2:
            self._seen.clear()
        self._last = now
        before, self._seen = self._seen, {}
        silent: list[tuple[int, str, int, int]] = []
        for run_id, kind, attempt, beat in running:
            known = before.get(run_id)
            since = known[2] if known is not None and known[:2] == (attempt, beat) else now
            self._seen[run_id] = (attempt, beat, since)
            if now - since >= self._leases.get(kind, self.lease_seconds):
                silent.append((run_id, kind, attempt, beat))
        return [lost for entry in silent if (lost := self._take(*entry)) is not None]

    def _take(self, run_id: int, kind: str, attempt: int, beat: int) -> LostRun | None:
        """Change the status of a silent run. None if the run has changed, or if its data make this fail."""
        work = self._mark_lost if kind == REPORTED else self._give_back
        lost = try_for_run(run_id, "looking for lost runs", partial(work, run_id, attempt, beat), None)
        if lost is not None:
            self.on_lost(run_id)
        return lost

    def _mark_lost(self, run_id: int, attempt: int, beat: int) -> LostRun | None:
        heard = datetime.fromtimestamp(time.time() - self._leases[REPORTED], UTC)
        reason = f"last heard of at {heard:%Y-%m-%d %H:%M:%S} UTC"
        with self.database.write() as session:
            if not mark_lost(session, run_id, attempt, beat, reason):
                return None
        log.warning("the program of a reported run fell silent, the run is lost now", extra={"run": run_id, "attempt": attempt})
        return LostRun(run_id, attempt, LOST)

    def _give_back(self, run_id: int, attempt: int, beat: int) -> LostRun | None:
        with self.database.write() as session:
            try:
                run = lock_run(session, run_id, attempt)
            except LeaseLost:
                return None
            if run.beat != beat:  # a heartbeat has arrived since the check
                return None
            reason = f"lost contact with {run.owner}: no heartbeat for {self.lease_seconds:g} s"
            status = lifecycle.release(session, run_id, attempt, reason, loss=WORKER_LOST)
        log.warning("worker lost, the run is %s now", status, extra={"run": run_id, "attempt": attempt})
        wake_workers(self.broker_url)
        return LostRun(run_id, attempt, status)

    def _run(self) -> None:
        away = False
        while not self._stopping.wait(TICK_SECONDS):
            try:
                self.reap()
                away = False
            except (SQLAlchemyError, SchemaMismatch) as error:
                if not away:
                    log.warning("cannot look for lost runs, the database does not answer: %s", str(error).partition("\n")[0])
                away = True
            except Exception:  # this thread must continue: nothing else in this process looks for lost runs
                log.exception("cannot look for lost runs")
