"""A worker's lanes: each claims the run that is next, has it trained, and looks for the next one, until the worker stops."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time

from sqlalchemy import select

from server.checkpoint_store import CheckpointStore
from server.database.connection import Database
from server.database.models import Run
from server.database.watchdog import guard
from server.runs import lifecycle
from server.runs.lost_runs import LostRunReaper
from server.settings import Settings
from worker.checkpoint_uploads import CheckpointUploads
from worker.cleaner import Cleaner
from worker.compactor import Compactor
from worker.gpus import Booking, default_folder, visible_gpus
from worker.metrics import LaneCounts
from worker.notify import publisher
from worker.pipe import Message
from worker.process_pool import Lane, ProcessPool
from worker.registration import Registration
from worker.supervision import Supervision
from worker.write_statistics import Numbers, WriteTotals
from worker.writer import DATABASE_AWAY

WARM_SECONDS = 60.0
EXIT_SECONDS = 7.5
UPLOAD_SECONDS = 1.5  # for what a drained run has just saved

log = logging.getLogger(__name__)


class Lanes:
    """The lanes of one worker process and what they share. `work` is called by a poller or by Celery."""

    def __init__(self, settings: Settings, *, slots: int | None, spool_bytes: int, queues: list[str] | None = None) -> None:
        self._booking = Booking(visible_gpus(), settings.gpu_locks or default_folder())
        count = slots or max(1, self._booking.take_all())
        host = socket.gethostname()
        self.settings = settings
        self.id = f"{host}:{os.getpid()}:{int(time.time())}"
        self.stop = threading.Event()
        self._lanes = [Lane(number) for number in range(count)]
        self._spool_bytes = spool_bytes
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self._lanes:
            self._free.put(lane)
        self._database = Database(settings.database_url)
        guard(self._database)
        self._publish = publisher(self._database, settings.broker_url)
        self._totals = WriteTotals()
        store = CheckpointStore(settings.checkpoint_store) if settings.checkpoint_store else None
        self._uploads = CheckpointUploads(self._database, store, settings.data_dir) if store else None
        self._registration = Registration(
            self._database,
            settings,
            {"worker_id": self.id, "host": host, "slots": count},
            {"queues": queues},
            stop=self.stop,
            statistics=self._totals.total,
            on_schema=self._start_chores,
        )
        self._processes = ProcessPool(self._lanes, self._booking, threads=_threads_each(count), on_capabilities=self._set_machine)
        self._reaper = LostRunReaper(
            self._database, settings.lease_seconds, broker_url=settings.broker_url, on_lost=self._publish
        )
        self._claiming = threading.Lock()
        self._unsure = False  # a claim was sent and never answered: a run may be ours without our knowing
        self._training: set[tuple[int, int]] = set()  # run, attempt

    def __len__(self) -> int:
        """How many runs train here at a time."""
        return len(self._lanes)

    def counts(self) -> LaneCounts:
        """What the lanes do now."""
        processes = [lane.process for lane in self._lanes]  # each looked at once: its lane may give it away meanwhile
        prepared = sum(p is not None and p.capabilities is not None and p.alive() for p in processes)
        return LaneCounts(len(self._lanes), len(self._training), prepared)

    def writes(self) -> Numbers:
        """Sums of what was stored here."""
        return self._totals.total()

    def open(self) -> None:
        """Start warming the training processes and showing signs of life."""
        self._processes.start()
        self._registration.start()
        threading.Thread(target=self._shut_down, name="shutdown", daemon=True).start()

    def close(self) -> None:
        """Sign off, once no run is left here."""
        self._registration.join(1.0)
        for _ in self._lanes:
            self._free.get()  # those that Celery woke drain, too
        if self._uploads is not None:
            self._uploads.close(UPLOAD_SECONDS)
        try:
            with self._database.write() as session:
                lifecycle.forget_worker(session, self.id)
        except DATABASE_AWAY as error:
            log.warning("cannot sign off, database away: %s", error)

    def work(self) -> None:
        """Claim and supervise, one run after the other, until nothing is queued that this worker can train. Never raises."""
        try:
            lane = self._free.get_nowait()
        except queue.Empty:
            return  # every lane has its run, and looks for the next when that one ends
        try:
            while not self.stop.is_set() and self._train_next(lane):
                pass
        except DATABASE_AWAY as error:
            log.warning("cannot claim, database away: %s", error)
            self.stop.wait(1.0)
        except Exception:
            log.exception("lane failed", extra={"lane": lane.number})
            self.stop.wait(1.0)
        finally:
            self._free.put(lane)

    def _train_next(self, lane: Lane) -> bool:
        with self._claiming:
            self._give_back_unknown()
        if not self._processes.wait_ready(lane, WARM_SECONDS):
            return False
        self._registration.wait_data_known(WARM_SECONDS)
        if (known := self._registration.capabilities()) is None:
            return False
        # on a machine with several kinds a run must get the one it asked for
        claim = self._claim(known | {"gpus": [lane.gpu.name] if lane.gpu else []})
        if claim is None:
            return False
        if self._uploads is not None:
            self._uploads.training(claim.run_id)
        try:
            return self._train(lane, claim)
        finally:
            self._training.discard((claim.run_id, claim.attempt))
            if self._uploads is not None:
                self._uploads.ended(claim.run_id)

    def _claim(self, capabilities: Message) -> lifecycle.Claim | None:
        with self._claiming:
            self._unsure = True
            with self._database.write() as session:
                claim = lifecycle.claim(session, self.id, capabilities)
            self._unsure = False
            if claim is not None:
                self._training.add((claim.run_id, claim.attempt))
            return claim

    def _give_back_unknown(self) -> None:
        """Give back what we hold without training it; otherwise only the reaper would, and count a worker as lost."""
        if not self._unsure:
            return
        with self._database.write() as session:
            ours = session.execute(select(Run.id, Run.attempt).where(Run.status == "running", Run.owner == self.id)).all()
            for run_id, attempt in ours:
                if (run_id, attempt) not in self._training:
                    lifecycle.release(session, run_id, attempt, "the answer to a claim was lost")
        self._unsure = False

    def _train(self, lane: Lane, claim: lifecycle.Claim) -> bool:
        log.info("claimed", extra={"run": claim.run_id, "attempt": claim.attempt, "lane": lane.number})
        self._publish(claim.run_id)
        # it was ready before the claim; waiting for the next one would delay a cancel
        process = self._processes.take(lane, 0.0)
        if process is None:
            with self._database.write() as session:
                lifecycle.release(session, claim.run_id, claim.attempt, "its training process ended before it had the run")
            return False
        Supervision(
            claim, process, self._database, self.settings, self._spool_bytes, self._publish, self.stop, self._totals
        ).run()
        self._processes.refill(lane)
        return True

    def _start_chores(self) -> None:
        """What some worker must do for all: find lost runs, compact ended ones; and each for its machine: remove folders."""
        self._reaper.start()
        Compactor(self._database, self.stop).start()
        if self._uploads is not None:
            self._uploads.start()
        Cleaner(self._database, self.settings.data_dir, self.stop).start()

    def _shut_down(self) -> None:
        self.stop.wait()
        self._registration.wake()
        self._processes.close()  # runs in progress drain meanwhile
        time.sleep(EXIT_SECONDS)
        log.error("something hangs, leaving it behind")
        os._exit(1)  # the training processes end with us

    def _set_machine(self, machine: Message) -> None:
        self._registration.set_machine(machine | {"gpus": self._booking.names})


def _threads_each(lanes: int) -> int:
    # one core stays with the server, the database and the recorders' threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, (cores - 1) // lanes)
