"""Keeps one warm training process per lane, so that a run does not wait for the import of torch, and starts a
process for an autopsy when one is due.

A fork server that has imported torch forks the processes. If forking is impossible or unsafe, the processes are spawned. One
long-lived thread starts all processes, because Linux sends the parent-death signal to a child when the *thread* that started
the child ends, not when the parent process ends.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from worker.exit_causes import one_line
from worker.fork_server_client import ForkRefused, ForkServer, ServerGone
from worker.gpus import ON_THE_CPU, Booking, Gpu
from worker.pipe import Message
from worker.training_process import DeviceAccess, TrainingProcess, spawn

SPAWN_DELAY_SECONDS = 2.0  # delay before the next spawn, in seconds, so that its imports do not slow down the start of a run
STARTING_POLL_SECONDS = 0.02  # time between two checks while a process starts, in seconds
MOST_DEATHS = 3  # maximum number of consecutive fork servers that end without producing a warm process
RETRY_SECONDS = (1.0, 5.0, 30.0)
GPU_POLL_SECONDS = 2.0  # time between two attempts to book a GPU, in seconds

log = logging.getLogger(__name__)


@dataclass
class Lane:
    """Trains one run at a time, on its GPU or on the CPU."""

    number: int
    gpu: Gpu | None = None
    process: TrainingProcess | None = None
    used: TrainingProcess | None = None  # has trained a run and waits for another
    spawn_at: float = 0.0
    failures: int = 0
    waits_for_gpu: bool = False

    def is_warm(self) -> bool:
        return (self.used is not None and self.used.is_alive()) or self.has_fresh()

    def has_fresh(self) -> bool:
        """True if a warm process that has trained no run waits."""
        return self.process is not None and self.process.capabilities is not None and self.process.is_alive()


class ProcessPool(threading.Thread):
    """The lanes of a worker. Its thread keeps one warm training process for each lane."""

    def __init__(self, slots: int, booking: Booking) -> None:
        super().__init__(name="process-pool", daemon=True)
        self.lanes, self.booking = [Lane(number) for number in range(slots)], booking
        self._spare = Lane(0)  # for autopsies: it trains no run, and its process shares the GPU of the first lane
        self._spares_wanted = 0
        self._environment = _environment(_threads_each(slots))
        self._reported: Message | None = None  # the newest report from a training process
        self._on_report: Callable[[Message], None] | None = None
        self._server: ForkServer | None = None
        self._server_deaths = 0
        self._why_spawn: str | None = None  # why processes are spawned instead of forked
        self._changed = threading.Condition()
        self._closed = False

    def report_to(self, on_report: Callable[[Message], None]) -> None:
        """Call on_report with the capabilities that training processes report, including a report that has already arrived."""
        with self._changed:
            self._on_report = on_report
            if self._reported is not None:
                on_report(self._reported)

    def _report(self, capabilities: Message) -> None:
        with self._changed:
            self._reported = capabilities
            if self._on_report is not None:
                self._on_report(capabilities)

    def wait_ready(self, lane: Lane, timeout: float) -> bool:
        """True as soon as the lane's process is warm, False if the process is not warm within `timeout` seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or lane.is_warm(), timeout)
            return not self._closed and lane.is_warm()

    def take(self, lane: Lane, timeout: float, *, fresh: bool = False) -> TrainingProcess | None:
        """A warm process of the lane, which now belongs to the caller, or None if no process is warm within `timeout` seconds.

        The process that trained the lane's last run is taken first. fresh: it is taken only if no fresh process is warm.
        """
        with self._changed:
            used, lane.used = lane.used, None
            if used is None or not used.is_alive() or (fresh and lane.has_fresh()):
                process = self._take_fresh(lane, timeout)
            else:
                process, used = used, None
        if used is not None:
            self._end(used)
        return process

    def _take_fresh(self, lane: Lane, timeout: float) -> TrainingProcess | None:
        # the caller has acquired the condition
        if not self.wait_ready(lane, timeout):
            return None
        later = 0.0 if self._why_spawn is None else SPAWN_DELAY_SECONDS
        process, lane.process, lane.spawn_at = lane.process, None, time.monotonic() + later
        self._changed.notify_all()
        return process

    def take_spare(self, timeout: float) -> TrainingProcess | None:
        """A warm process beside those of the lanes, which now belongs to the caller. It is started now. None if it is not warm
        within `timeout` seconds. Several threads may wait for one; each process goes to one of them."""
        with self._changed:
            self._spares_wanted += 1
            self._changed.notify_all()
            process = self.take(self._spare, timeout)
            self._spares_wanted -= 1
            return process

    def put_back(self, lane: Lane, process: TrainingProcess) -> None:
        """Keep a process that waits for another run, until the lane takes it or calls `end_used`."""
        with self._changed:
            if not self._closed:
                lane.used = process
                return
        self._end(process)

    def end_used(self, lane: Lane) -> None:
        """End the process that has trained the lane's last run, because no run follows."""
        with self._changed:
            used, lane.used = lane.used, None
        if used is not None:
            self._end(used)

    def refill(self, lane: Lane) -> None:
        """Start the next process of a lane that has become free."""
        with self._changed:
            lane.spawn_at = min(lane.spawn_at, time.monotonic())
            self._changed.notify_all()

    def close(self) -> None:
        """End all warm processes and start no further ones."""
        with self._changed:
            self._closed = True
            lanes = (*self.lanes, self._spare)
            processes = [process for lane in lanes for process in (lane.process, lane.used) if process is not None]
            for lane in lanes:
                lane.used = None
            self._changed.notify_all()
        for process in processes:
            self._end(process)

    def run(self) -> None:
        while True:
            with self._changed:
                if self._closed:
                    # never end this thread: the training processes of draining runs would die with it
                    self._changed.wait()
                    continue
                lanes = self._lanes()
                for lane in lanes:
                    if lane.process is not None:
                        self._check(lane, lane.process)
                wanted = [lane for lane in lanes if lane.process is None and time.monotonic() >= lane.spawn_at]
            for lane in wanted:
                self._start(lane)  # without the lock: starting takes time, and the lanes' threads must not wait
            with self._changed:
                if not self._closed:
                    self._changed.wait(self._pause())

    def _lanes(self) -> list[Lane]:
        """The lanes that have or need a process."""
        return [*self.lanes, *([self._spare] if self._spares_wanted or self._spare.process is not None else [])]

    def _check(self, lane: Lane, process: TrainingProcess) -> None:
        cold = process.capabilities is None
        try:
            if process.poll_warm() and cold:
                lane.failures = self._server_deaths = 0
                way = "forked" if self._why_spawn is None else f"spawned: {self._why_spawn}"
                self._report((process.capabilities or {}) | {"processes": way})
                self._changed.notify_all()
        except EOFError:
            self._failed(lane, process)
            return
        if not process.is_alive():
            self._failed(lane, process)

    def _start(self, lane: Lane) -> None:
        if (device := self._device_access(lane)) is None:
            lane.spawn_at = time.monotonic() + GPU_POLL_SECONDS
            return
        try:
            process = self._fork(device) if self._why_spawn is None else spawn(self._environment, device)
        except (
            OSError
        ) as error:  # out of memory or process ids; this thread must continue, because the training processes depend on it
            self._retry(lane, f"training process cannot be started: {error}")
            return
        with self._changed:
            lane.process = process
            if self._closed and process is not None:
                self._end(process)

    def _fork(self, device: DeviceAccess) -> TrainingProcess | None:
        """A process from the fork server; None while the server starts or after it has failed."""
        try:
            if self._server is None:
                self._server = ForkServer(self._environment | device.environment)
            return self._server.fork(device) if self._server.ready() else None
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

    def _device_access(self, lane: Lane) -> DeviceAccess | None:
        """The access of this lane to its booked GPU, or to the CPU; None while other workers hold every GPU."""
        gpus = self.booking.gpus
        if not gpus:
            return DeviceAccess()
        if lane is self._spare and (lane := self.lanes[0]).gpu is None:
            return None
        number = lane.number % len(gpus)
        if lane.gpu is None:
            if (gpu := self.booking.take(number)) is None:
                self._log_no_gpu(lane)
                return None
            lane.gpu = gpu
            log.info("GPU %s (%s) is booked", gpu.uuid, gpu.name, extra={"lane": lane.number})
        # select the GPU by UUID, because an index depends on the order; for code that uses an index, set nvidia-smi's order
        environment = {"CUDA_VISIBLE_DEVICES": lane.gpu.uuid, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        return DeviceAccess(environment, (self.booking.lock_of(number),))

    def _log_no_gpu(self, lane: Lane) -> None:
        if not lane.waits_for_gpu:
            lane.waits_for_gpu = True
            log.error(
                "no GPU is free, this lane waits for one: %s; %s", self.booking.why_none_free(), ON_THE_CPU,
                extra={"lane": lane.number},
            )  # fmt: skip
            if not self.booking.names:
                self._report({"problem": f"no free GPU: {self.booking.why_none_free()}"})

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
        if self._starting or any(lane.process is not None and lane.process.capabilities is None for lane in self._lanes()):
            return STARTING_POLL_SECONDS
        return min([1.0, *(max(0.0, lane.spawn_at - now) for lane in self._lanes() if lane.process is None)])

    def _end(self, process: TrainingProcess) -> None:
        process.kill()
        process.end(1)


def _threads_each(lanes: int) -> int:
    # leave one core for the server, the database and the recorders' threads
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, (cores - 1) // lanes)


def _environment(threads: int) -> dict[str, str]:
    """The environment of every training process and of the fork server."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "PYTHONFAULTHANDLER": "1"}
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        environment.setdefault(name, str(threads))
    environment.setdefault("OPENBLAS_NUM_THREADS", "1")  # otherwise numpy's import would start threads, before any fork
    return environment
