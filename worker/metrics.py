"""What one worker shows to Prometheus, on a port of its own: its process, its lanes, its writes, its machine's disk and GPUs.

Nothing here asks the database, so all of it is there while the database is away. It is off unless a port is given, needs no
token, and tells no name of a run, no path and no setting.
"""

from __future__ import annotations

import logging
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import click
from prometheus_client import start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from server.process_metrics import counter, gauge, histogram, registry
from worker.write_statistics import Numbers

GPU_QUERY = ["nvidia-smi", "--query-gpu=uuid,memory.used,memory.total,utilization.gpu", "--format=csv,noheader,nounits"]
GPU_SECONDS = 5.0  # how long one look is good for, and how long it may take
MIB = 1 << 20
WRITE_COUNTERS = {
    "values_recorded": "Values that training handed over here to be stored.",
    "values_stored": "Values of this worker whose transaction was committed.",
    "values_dropped": "Values given up here for good; anything but 0 is a fault.",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaneCounts:
    """Lanes of a worker, how many of them train a run, how many have a process ready for the next one."""

    lanes: int
    training: int
    prepared: int


def serve_metrics(host: str, port: int, data_dir: Path, lanes: Callable[[], LaneCounts], writes: Callable[[], Numbers]) -> int:
    """Answer scrapes from daemon threads; gives the port. Raises click.ClickException when it cannot listen there."""
    shown = registry(data_dir)
    shown.register(WorkerCollector(lanes, writes))
    shown.register(GpuCollector())
    try:
        server, _ = start_http_server(port, host, registry=shown)
    except (OSError, OverflowError) as error:
        raise click.ClickException(f"--metrics-port: cannot listen on {host}:{port}: {error}") from None
    log.info("metrics at http://%s:%d/metrics", host, server.server_port)
    return server.server_port


class WorkerCollector(Collector):
    """Lanes and writes. The server shows the same writes by worker, as the worker's row had them last."""

    def __init__(self, lanes: Callable[[], LaneCounts], writes: Callable[[], Numbers]) -> None:
        self._lanes, self._writes = lanes, writes

    def collect(self) -> Iterator[Metric]:
        lanes, writes = self._lanes(), self._writes()
        yield gauge("worker_lanes", "Runs that can train here at once.", lanes.lanes)
        yield gauge("worker_runs_training", "Runs that train here now.", lanes.training)
        yield gauge("worker_prepared_processes", "Training processes that wait for a run.", lanes.prepared)
        for name, meaning in WRITE_COUNTERS.items():
            yield counter(f"worker_{name}", meaning, writes[name])
        yield gauge("worker_spool_bytes", "On this worker's disk, waiting for the database.", writes["spool_bytes"])
        meaning = "From a flush of recorded steps to its commit."
        yield histogram("worker_write_delay_seconds", meaning, writes["bounds"], accumulate(writes["counts"]), writes["sum"])


class GpuCollector(Collector):
    """Memory and utilisation of the machine's GPUs by UUID, as nvidia-smi has them; nothing where there is none."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[list[str]] = []
        self._looked = float("-inf")

    def collect(self) -> Iterator[Metric]:
        if not (lines := self._look()):
            return
        used = GaugeMetricFamily("stablessm_gpu_memory_used_bytes", "GPU memory in use, by any program.", labels=["uuid"])
        total = GaugeMetricFamily("stablessm_gpu_memory_bytes", "GPU memory.", labels=["uuid"])
        busy = GaugeMetricFamily("stablessm_gpu_utilization_ratio", "Share of time in which a kernel ran.", labels=["uuid"])
        for uuid, *numbers in lines:
            for family, text, scale in zip((used, total, busy), numbers, (MIB, MIB, 0.01), strict=True):
                if text.isdecimal():  # a GPU that is partitioned has no utilisation of its own: [N/A]
                    family.add_metric([uuid], int(text) * scale)
        yield from (used, total, busy)

    def _look(self) -> list[list[str]]:
        with self._lock:
            if time.monotonic() - self._looked > GPU_SECONDS and shutil.which(GPU_QUERY[0]):
                try:
                    done = subprocess.run(GPU_QUERY, capture_output=True, text=True, timeout=GPU_SECONDS, check=True)
                    split = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
                    self._lines = [parts for parts in split if len(parts) == 4]
                except (OSError, subprocess.SubprocessError) as error:
                    log.debug("nvidia-smi does not answer: %s", error)
                    self._lines = []
                self._looked = time.monotonic()
            return self._lines
