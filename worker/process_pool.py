"""Keeps one warm training process per lane, so that a run does not wait for the import of torch.

They are forked by a server that has imported torch, or spawned where that is not possible or not safe. This one long-lived thread
starts them all, because Linux delivers a parent's death signal when the spawning *thread* ends, not when its process does.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from worker.exit_causes import one_line
from worker.fork_server import ForkRefused, ForkServer, ServerGone
from worker.gpus import ON_THE_CPU, Booking, Gpu
from worker.pipe import Message
from worker.training_process import Place, TrainingProcess, spawn

LATER_SECONDS = 2.0  # a run's first seconds are not shared with the import of the next process, where it is spawned
COLD_SECONDS = 0.02  # between two looks at what starts
MOST_DEATHS = 3  # of fork servers without a training process that became warm
RETRY_SECONDS = (1.0, 5.0, 30.0)
GPU_SECONDS = 2.0  # between two looks for a GPU that another worker has given back

log = logging.getLogger(__name__)


@dataclass
class Lane:
    """A place where one run trains at a time: a GPU, or the CPU."""

    number: int
    gpu: Gpu | None = None
    process: TrainingProcess | None = None
    spawn_at: float = 0.0
    failures: int = 0
    waits_for_gpu: bool = False

    def is_warm(self) -> bool:
        return self.process is not None and self.process.capabilities is not None and self.process.alive()


class ProcessPool(threading.Thread):
    """Keeps the lanes' warm processes. `on_capabilities` is told what the first one reports."""

    def __init__(self, lanes: list[Lane], booking: Booking, *, threads: int, on_capabilities: Callable[[Message], None]) -> None:
        super().__init__(name="process-pool", daemon=True)
        self.lanes, self._booking = lanes, booking
        self._environment, self._on_capabilities = _environment(threads), on_capabilities
        self._server: ForkServer | None = None
        self._server_deaths = 0
        self._why_spawn: str | None = None  # why no process is forked any more
        self._changed = threading.Condition()
        self._closed = False

    def wait_ready(self, lane: Lane, timeout: float) -> bool:
        """True as soon as the lane's process is warm, False if it is not within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or lane.is_warm(), timeout)
            return not self._closed and lane.is_warm()

    def take(self, lane: Lane, timeout: float) -> TrainingProcess | None:
        """The lane's warm process, now the caller's; None if there is none within `timeout` seconds."""
        with self._changed:
            if not self.wait_ready(lane, timeout):
                return None
            later = 0.0 if self._why_spawn is None else LATER_SECONDS
            process, lane.process, lane.spawn_at = lane.process, None, time.monotonic() + later
            self._changed.notify_all()
            return process

    def refill(self, lane: Lane) -> None:
        """The lane is free: its next process is wanted now."""
        with self._changed:
            lane.spawn_at = min(lane.spawn_at, time.monotonic())
            self._changed.notify_all()

    def close(self) -> None:
        """End every process that waits; none is spawned any more."""
        with self._changed:
            self._closed = True
            processes = [lane.process for lane in self.lanes if lane.process is not None]
            self._changed.notify_all()
        for process in processes:
            self._end(process)

    def run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    self._changed.wait()  # never ends while the process lives: runs that drain would die with this thread
                    continue
                for lane in self.lanes:
                    if lane.process is not None:
                        self._check(lane, lane.process)
                wanted = [lane for lane in self.lanes if lane.process is None and time.monotonic() >= lane.spawn_at]
            for lane in wanted:
                self._start(lane)  # takes its time: the lanes' threads must not wait for it
            with self._changed:
                if not self._closed:
                    self._changed.wait(self._pause())

    def _check(self, lane: Lane, process: TrainingProcess) -> None:
        cold = process.capabilities is None
        try:
            if process.warm() and cold:
                lane.failures = self._server_deaths = 0
                way = "forked" if self._why_spawn is None else f"spawned: {self._why_spawn}"
                self._on_capabilities((process.capabilities or {}) | {"processes": way})
                self._changed.notify_all()
        except EOFError:
            self._failed(lane, process)
            return
        if not process.alive():
            self._failed(lane, process)

    def _start(self, lane: Lane) -> None:
        if (place := self._place(lane)) is None:
            lane.spawn_at = time.monotonic() + GPU_SECONDS
            return
        try:
            process = self._fork(place) if self._why_spawn is None else spawn(self._environment, place)
        except OSError as error:  # no memory, no process number: this thread must live, the runs in progress hang on it
            self._retry(lane, f"training process cannot be started: {error}")
            return
        with self._changed:
            lane.process = process
            if self._closed and process is not None:
                self._end(process)

    def _fork(self, place: Place) -> TrainingProcess | None:
        """A process of the fork server; None while that starts, or when there will be none."""
        try:
            if self._server is None:
                self._server = ForkServer(self._environment | place.environment)
            return self._server.fork(place) if self._server.ready() else None
        except ForkRefused as error:
            self._why_spawn = str(error)
        except ServerGone as error:
            self._server_deaths += 1
            log.error("the fork server ended: %s", one_line(str(error)))
            if self._server_deaths == MOST_DEATHS:
                self._why_spawn = f"the fork server ended {MOST_DEATHS} times"
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._why_spawn is not None:
            log.warning("training processes are spawned, which takes seconds each: %s", self._why_spawn)
        return None

    def _place(self, lane: Lane) -> Place | None:
        """Where the lane trains: on the GPU that is booked for it; None while other workers have them all."""
        gpus = self._booking.gpus
        if not gpus:
            return Place()
        number = lane.number % len(gpus)
        if lane.gpu is None:
            if (gpu := self._booking.take(number)) is None:
                self._say_taken(lane)
                return None
            lane.gpu = gpu
            log.info("GPU %s (%s) is booked", gpu.uuid, gpu.name, extra={"lane": lane.number})
        # an index would be another GPU in another order; what asks by index nevertheless gets nvidia-smi's order
        environment = {"CUDA_VISIBLE_DEVICES": lane.gpu.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return Place(environment, (self._booking.lock_of(number),))

    def _say_taken(self, lane: Lane) -> None:
        if not lane.waits_for_gpu:
            lane.waits_for_gpu = True
            log.error(
                "no GPU is free, this lane trains nothing until one is: %s; %s", self._booking.taken(), ON_THE_CPU,
                extra={"lane": lane.number},
            )  # fmt: skip
            if not self._booking.names:
                self._on_capabilities({"problem": f"no free GPU: {self._booking.taken()}"})

    def _failed(self, lane: Lane, process: TrainingProcess) -> None:
        code = process.end(1)
        self._retry(lane, f"training process ended before it had a run (exit code {code}): {one_line(process.last_output())}")

    def _retry(self, lane: Lane, problem: str) -> None:
        pause = RETRY_SECONDS[min(lane.failures, len(RETRY_SECONDS) - 1)]
        lane.process, lane.spawn_at = None, time.monotonic() + pause
        lane.failures += 1
        log.error("%s; the next one starts in %g s", problem, pause, extra={"lane": lane.number})

    @property
    def _starting(self) -> bool:
        return self._server is not None and not self._server.is_ready

    def _pause(self) -> float:
        now = time.monotonic()
        if self._starting or any(lane.process is not None and lane.process.capabilities is None for lane in self.lanes):
            return COLD_SECONDS
        return min([1.0, *(max(0.0, lane.spawn_at - now) for lane in self.lanes if lane.process is None)])

    def _end(self, process: TrainingProcess) -> None:
        process.kill()
        process.end(1)


def _environment(threads: int) -> dict[str, str]:
    """Of every training process, and of the server that forks them."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, str(threads))
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's: it would start them when it is imported, before any fork
    return environment
