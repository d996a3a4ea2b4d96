"""A worker's lanes: each claims the next run, lets a process train it, and repeats until the worker stops."""

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
from server.lifecycle import transitions as lifecycle
from server.lifecycle.event_wakeups import publisher
from server.lifecycle.lost_runs import LostRunReaper
from server.settings import Settings
from worker.autopsies import Autopsies, WorkerState
from worker.checkpoint_uploads import CheckpointUploads
from worker.chores import Cleaner, Compactor
from worker.metrics import LaneCounts
from worker.pipe import Message
from worker.process_pool import Lane, ProcessPool
from worker.quarantine import Quarantine
from worker.registration import Registration
from worker.supervision import Supervision
from worker.write_statistics import Numbers, WriteTotals
from worker.writer import DATABASE_AWAY

WARM_SECONDS = 60.0
EXIT_SECONDS = 7.5
AUTOPSY_SECONDS = 2.0  # time limit for killing an autopsy and putting it back into the queue, in seconds
UPLOAD_SECONDS = 1.5  # time limit for uploading the last checkpoint of a drained run, in seconds

log = logging.getLogger(__name__)


class Lanes:
    """The lanes of one worker and their shared state. A polling thread or Celery calls `work`."""

    def __init__(self, settings: Settings, processes: ProcessPool, *, spool_bytes: int, queues: list[str] | None = None) -> None:
        host = socket.gethostname()
        self.settings = settings
        self.id = f"{host}:{os.getpid()}:{int(time.time())}"
        self.stop = threading.Event()
        self._processes, self._lanes = processes, processes.lanes
        self._spool_bytes = spool_bytes
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self._lanes:
            self._free.put(lane)
        self._database = Database(settings.database_url)
        guard(self._database)
        self._publish = publisher(self._database, settings.broker_url)
        self._totals = WriteTotals()
        self.quarantine = Quarantine(settings.data_dir, settings.min_free_mib << 20, self._report)
        store = CheckpointStore(settings.checkpoint_store) if settings.checkpoint_store else None
        self._uploads = CheckpointUploads(self._database, store, settings.data_dir) if store else None
        self._registration = Registration(
            self._database,
            settings,
            {"worker_id": self.id, "host": host, "slots": len(self._lanes)},
            {"queues": queues},
            stop=self.stop,
            statistics=self._totals.total,
            quarantine=self.quarantine.shown,
            on_schema=self._start_chores,
        )
        processes.report_to(self._set_machine)
        self._reaper = LostRunReaper(
            self._database, settings.lease_seconds, reported_lease_seconds=settings.reported_lease_seconds,
            broker_url=settings.broker_url, on_lost=self._publish,
        )  # fmt: skip
        state = WorkerState(
            self.id, host, lambda: len(self._training), self._registration.capabilities, self.quarantine
        )  # fmt: skip
        self._autopsies = [
            Autopsies(self._database, settings, processes, state, self._publish, self.stop, asked=asked)
            for asked in (True, False)
        ]
        self._claiming = threading.Lock()
        self._claim_unanswered = False  # True if a claim got no response, so this worker may own a run without knowing it
        self._training: set[tuple[int, int]] = set()  # (run, attempt) of the runs in training

    def __len__(self) -> int:
        """The number of runs that can train at the same time."""
        return len(self._lanes)

    def counts(self) -> LaneCounts:
        """How many lanes exist, how many train, and how many have a warm process."""
        # read only once per lane, because a lane may hand over its process meanwhile
        processes = [lane.process for lane in self._lanes]
        prepared = sum(p is not None and p.capabilities is not None and p.is_alive() for p in processes)
        return LaneCounts(len(self._lanes), len(self._training), prepared, self.quarantine.reason is not None)

    def writes(self) -> Numbers:
        """The totals of this worker's writes."""
        return self._totals.total()

    def open(self) -> None:
        """Start the heartbeat."""
        self._registration.start()
        threading.Thread(target=self._shut_down, name="shutdown", daemon=True).start()

    def close(self) -> None:
        """Wait for the lanes to drain, then remove the worker's row."""
        self._registration.join(1.0)
        for _ in self._lanes:
            self._free.get()  # waits for every lane, including lanes that Celery woke
        for autopsies in self._autopsies:
            if autopsies.is_alive():
                autopsies.join(AUTOPSY_SECONDS)
        if self._uploads is not None:
            self._uploads.close(UPLOAD_SECONDS)
        try:
            with self._database.write() as session:
                lifecycle.forget_worker(session, self.id)
        except DATABASE_AWAY as error:
            log.warning("the worker's row stays, database away: %s", error)

    def work(self) -> None:
        """Claim and supervise runs until no run is queued that this worker can train. Never raises."""
        try:
            lane = self._free.get_nowait()
        except queue.Empty:
            return  # every lane has a run and looks for the next run when its run ends
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
            self._processes.end_used(lane)
            self._free.put(lane)

    def _train_next(self, lane: Lane) -> bool:
        with self._claiming:
            self._release_unknown()
        if not self.quarantine.admits(len(self._training)):
            return False
        if not self._processes.wait_ready(lane, WARM_SECONDS):
            return False
        self._registration.wait_data_known(WARM_SECONDS)
        if (known := self._registration.capabilities()) is None:
            return False
        # report only this lane's GPU: a machine may have several kinds of GPU, and a run may require one kind
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
            self._claim_unanswered = True
            with self._database.write() as session:
                claim = lifecycle.claim(session, self.id, capabilities)
            self._claim_unanswered = False
            if claim is not None:
                self._training.add((claim.run_id, claim.attempt))
            return claim

    def _release_unknown(self) -> None:
        """Release runs that this worker owns but does not train. Otherwise the reaper would release them later and
        record a lost worker."""
        if not self._claim_unanswered:
            return
        with self._database.write() as session:
            ours = session.execute(select(Run.id, Run.attempt).where(Run.status == "running", Run.owner == self.id)).all()
            for run_id, attempt in ours:
                if (run_id, attempt) not in self._training:
                    lifecycle.release(session, run_id, attempt, "the response to a claim was lost")
        self._claim_unanswered = False

    def _train(self, lane: Lane, claim: lifecycle.Claim) -> bool:
        log.info("claimed", extra={"run": claim.run_id, "attempt": claim.attempt, "lane": lane.number})
        self._publish(claim.run_id)
        # the process was warm before the claim; do not wait for another process, because that would delay a cancel.
        # An interrupted run gets a fresh process, in case the earlier runs of a used process contributed to the interruption.
        process = self._processes.take(lane, 0.0, fresh=claim.attempt > 1)
        if process is None:
            with self._database.write() as session:
                lifecycle.release(session, claim.run_id, claim.attempt, "its training process ended before it got the run")
            return False
        waits = Supervision(
            claim, process, self._database, self.settings, self._spool_bytes, self._publish, self.stop, self._totals,
            self.quarantine, self._registration.lacks_data,
        ).run()  # fmt: skip
        if waits:
            self._processes.put_back(lane, process)
        else:
            self._processes.refill(lane)
        return True

    def _start_chores(self) -> None:
        """Start the threads that find lost runs, compact ended runs, do autopsies, upload checkpoints and remove deleted runs'
        folders."""
        self._reaper.start()
        Compactor(self._database, self.stop).start()
        if self._uploads is not None:
            self._uploads.start()
        if self.settings.autopsy:
            for autopsies in self._autopsies:
                autopsies.start()
        Cleaner(self._database, self.settings.data_dir, self.stop).start()

    def _report(self) -> None:
        self._registration.report()

    def _shut_down(self) -> None:
        self.stop.wait()
        self._registration.wake()
        self._processes.close()  # running runs drain meanwhile
        time.sleep(EXIT_SECONDS)
        log.error("a thread hangs; exiting without it")
        os._exit(1)  # the training processes end with this process

    def _set_machine(self, machine: Message) -> None:
        self._registration.set_machine(machine | {"gpus": self._processes.booking.names})
