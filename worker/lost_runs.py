"""What one worker must do for all: bring back the runs of lost workers, and wake workers again for runs nobody has claimed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from sqlalchemy import func, select

from server.database.connection import Database
from server.database.models import Run
from server.runs import lifecycle
from server.runs.worker_wakeups import wake_workers
from worker.notify import Publish

LEASE_SECONDS = 25.0  # with TICK_SECONDS: a lost worker is noticed within 30 s
TICK_SECONDS = 2.0
UNCLAIMED_SECONDS = 10.0

log = logging.getLogger(__name__)


class Caretaker:
    """Call `tick` every TICK_SECONDS, from one thread; any number of workers and servers may have one each."""

    def __init__(
        self,
        database: Database,
        broker_url: str | None,
        publish: Publish,
        *,
        lease: float = LEASE_SECONDS,
        unclaimed: float = UNCLAIMED_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database, self._broker_url, self._publish, self._unclaimed = database, broker_url, publish, unclaimed
        self._clock, self._reaper = clock, lifecycle.Reaper(lease, clock)
        self._waiting: tuple[int, int] | None = None  # oldest queued run and its attempts so far
        self._waiting_since = 0.0

    def tick(self) -> bool:
        """Look once; True when the queue's head has been standing still: whoever can should look for himself.

        Database errors are the caller's to handle.
        """
        for lost in self._reaper.tick(self._database):
            log.warning("worker lost, the run is %s now", lost.status, extra={"run": lost.run_id, "attempt": lost.attempt})
            self._publish(lost.run_id)
            wake_workers(self._broker_url)
        return self._broker_url is not None and self._wake_again()

    def _wake_again(self) -> bool:
        # A wake-up can be lost with the broker's data. If the head of the queue stands still for long, no worker was told.
        with self._database.read() as session:
            head = session.execute(
                select(Run.id, Run.attempt).where(Run.status == "queued").order_by(Run.priority.desc(), Run.id).limit(1)
            ).one_or_none()
            count = session.scalar(select(func.count()).select_from(Run).where(Run.status == "queued")) or 0
        now, seen = self._clock(), None if head is None else (head.id, head.attempt)
        if seen != self._waiting:
            self._waiting, self._waiting_since = seen, now
        elif seen is not None and now - self._waiting_since >= self._unclaimed:
            self._waiting_since = now
            log.info("%d runs are queued and none was claimed for %g s: waking the workers again", count, self._unclaimed)
            for _ in range(min(count, 8)):
                wake_workers(self._broker_url)
            return True
        return False
