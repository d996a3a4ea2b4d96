"""A worker's lanes and what they share: the one path from "look at the queue" to a supervised run."""

from __future__ import annotations

import logging
import os
import queue
import socket
import threading
import time

from sqlalchemy import select, update

from server.database.connection import Database
from server.database.models import Run, Worker
from server.database.revision import SchemaMismatch
from server.database.watchdog import guard
from server.runs import lifecycle
from server.runs.worker_wakeups import wake_workers
from server.settings import Settings
from stablessm_core.tasks.requirements import available_data
from worker.compactor import Compactor
from worker.gpus import visible_gpus
from worker.lost_runs import LEASE_SECONDS, TICK_SECONDS, Caretaker
from worker.notify import publisher
from worker.pipe import Message
from worker.process_pool import Lane, ProcessPool
from worker.supervision import Supervision
from worker.write_statistics import WriteTotals
from worker.writer import AWAY

WARM_SECONDS = 60.0
EXIT_SECONDS = 7.5
SCHEMA_SECONDS = 0.2
DATA_SECONDS = 30.0  # between two looks at the data sets; a look at unchanged files costs a stat each

log = logging.getLogger(__name__)


class Lanes:
    """The lanes of one worker process, and everything they share. How they are woken is not its business."""

    def __init__(
        self,
        settings: Settings,
        *,
        slots: int | None,
        spool_bytes: int,
        queues: list[str] | None = None,
        lease: float = LEASE_SECONDS,
    ) -> None:
        gpus = visible_gpus()
        count = slots or max(1, len(gpus))
        self.settings = settings
        self.host = socket.gethostname()
        self.id = f"{self.host}:{os.getpid()}:{int(time.time())}"
        self.stop = threading.Event()
        self._lanes = [Lane(number, gpus[number % len(gpus)].device if gpus else None) for number in range(count)]
        self._gpu_names = [gpu.name for gpu in gpus]
        self._spool_bytes, self._queues, self._lease = spool_bytes, queues, lease
        self._free: queue.SimpleQueue[Lane] = queue.SimpleQueue()
        for lane in self._lanes:
            self._free.put(lane)
        # one core stays with the server, the database and the recorders' threads
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        threads = max(1, (cores - 1) // count)
        self._processes = ProcessPool(self._lanes, threads=threads, on_capabilities=self._set_machine)
        self._database = Database(settings.database_url)
        guard(self._database)
        self._publish = publisher(self._database, settings.broker_url)
        self._totals = WriteTotals()
        self._machine: Message = {}  # what the training processes report
        self._data: dict[str, str] | None = None  # data sets; they come and go while a worker lives
        self._data_known = threading.Event()
        self._changed = threading.Event()
        self._claiming = threading.Lock()
        self._unsure = False  # a claim was sent and never answered: a run may be ours without our knowing
        self._training: set[tuple[int, int]] = set()  # run, attempt
        self._heartbeats = threading.Thread(target=self._keep_registered, name="worker-heartbeat", daemon=True)

    def __len__(self) -> int:
        """How many runs train here at a time."""
        return len(self._lanes)

    def open(self) -> None:
        """Start warming the training processes and showing signs of life."""
        self._processes.start()
        self._heartbeats.start()
        threading.Thread(target=self._shut_down, name="shutdown", daemon=True).start()

    def close(self) -> None:
        """Say goodbye, once no run is left here."""
        self._heartbeats.join(1.0)
        for _ in self._lanes:
            self._free.get()  # those that were not woken by the broker drain, too
        try:
            with self._database.write() as session:
                lifecycle.forget_worker(session, self.id)
        except AWAY as error:
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
        except AWAY as error:
            log.warning("cannot claim, database away: %s", error)
            self.stop.wait(1.0)
        except Exception:
            log.exception("lane failed", extra={"lane": lane.number})
            self.stop.wait(1.0)
        finally:
            self._free.put(lane)

    def _train_next(self, lane: Lane) -> bool:
        ready = self._processes.wait_ready(lane, WARM_SECONDS) and self._data_known.wait(WARM_SECONDS)
        if not ready or (known := self._capabilities()) is None:
            return False
        claim = self._claim(known | {"gpus": self._gpus_of(lane)})
        if claim is None:
            return False
        try:
            return self._train(lane, claim)
        finally:
            self._training.discard((claim.run_id, claim.attempt))

    def _claim(self, known: Message) -> lifecycle.Claim | None:
        with self._claiming:
            self._give_back_unknown()
            self._unsure = True
            with self._database.write() as session:
                claim = lifecycle.claim(session, self.id, known)
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
        process = self._processes.take(
            lane, 0.0
        )  # it was there before the claim; to wait for the next one would hold up a cancel
        if process is None:
            with self._database.write() as session:
                lifecycle.release(session, claim.run_id, claim.attempt, "its training process ended before it had the run")
            return False
        Supervision(
            claim, process, self._database, self.settings, self._spool_bytes, self._publish, self.stop, self._totals
        ).run()
        self._processes.refill(lane)
        return True

    def _shut_down(self) -> None:
        self.stop.wait()
        self._changed.set()
        self._data_known.set()
        self._processes.close()  # runs in progress drain meanwhile
        time.sleep(EXIT_SECONDS)
        log.error("something hangs, leaving it behind")
        os._exit(1)  # the training processes end with us

    def _set_machine(self, machine: Message) -> None:
        if machine != self._machine:  # from the process pool's thread, with each new process
            self._machine = machine
            self._changed.set()

    def _capabilities(self) -> Message | None:
        """What goes into this worker's row and decides which runs it claims; None until all of it is known."""
        if self._data is None or not self._machine:
            return None
        return self._machine | {"gpus": self._gpu_names, "data": self._data, "queues": self._queues}

    def _gpus_of(self, lane: Lane) -> list[str]:
        # of a machine with several kinds a run must get the one it asked for
        return [self._gpu_names[lane.number % len(self._gpu_names)]] if self._gpu_names else []

    def _await_schema(self) -> None:
        # whoever starts server and worker together migrates meanwhile
        said = False
        while not self.stop.is_set():
            try:
                self._database.check_schema()
                return
            except SchemaMismatch as error:
                why = str(error)
            except AWAY as error:
                why = str(error.args[0])
            if not said:
                log.info("waiting for the database: %s", why)
                said = True
            self.stop.wait(SCHEMA_SECONDS)

    def _keep_registered(self) -> None:
        """Registration, heartbeat of this worker, and what some worker must do for all."""
        caretaker = Caretaker(self._database, self.settings.broker_url, self._publish, lease=self._lease)
        registered: Message | None = None
        data_at, migrated = float("-inf"), False
        wake_workers(self.settings.broker_url)  # for runs queued while nobody listened
        while not self.stop.is_set():
            self._changed.clear()
            try:
                if not migrated:
                    self._await_schema()
                    migrated = True
                    Compactor(self._database, self.stop).start()
                if time.monotonic() - data_at > DATA_SECONDS:
                    self._data, data_at = available_data(self.settings.data_root), time.monotonic()
                    self._data_known.set()  # nothing is claimed before: the schema fits, too
                known = self._capabilities()
                with self._database.write() as session:
                    if known is not None and (known != registered or not lifecycle.beat_worker(session, self.id)):
                        lifecycle.register_worker(session, self.id, self.host, len(self._lanes), known)
                    if known is not None and (writes := self._totals.total())["values_recorded"]:
                        shown = known | {"writes": writes}  # for /metrics; nobody decides by it
                        session.execute(update(Worker).where(Worker.id == self.id).values(capabilities=shown))
                registered = known
                if caretaker.tick():  # the broker is away, or no message of it gets through
                    threading.Thread(target=self.work, name="lane-without-broker", daemon=True).start()
                if self._unsure and self._claiming.acquire(blocking=False):
                    try:
                        self._give_back_unknown()
                    finally:
                        self._claiming.release()
            except AWAY as error:
                log.warning("no sign of life, database away: %s", error.args[0])
            except Exception:
                log.exception("no sign of life")
            self._changed.wait(TICK_SECONDS)
