"""Prometheus metrics of one worker, on its own port: process, lanes, writes, and the machine's disk and GPUs.

The metrics are computed without the database, so they are available even while the database is unavailable. They are off unless
a port is given. Reading the metrics needs no token, and they contain no names of runs, paths or settings.
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
GPU_SECONDS = 5.0  # time for which a result of nvidia-smi is reused, and time limit of a call of nvidia-smi, in seconds
MIB = 1 << 20
WRITE_COUNTERS = {
    "values_recorded": "Values that training on this worker recorded.",
    "values_stored": "Recorded values whose transaction was committed.",
    "values_dropped": "Recorded values that will never be stored; anything but 0 is a fault.",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LaneCounts:
    """The number of a worker's lanes, of lanes that train, and of lanes with a warm process for the next run.

    quarantined: True if the worker claims no runs because of its machine.
    """

    lanes: int
    training: int
    prepared: int
    quarantined: bool = False


def serve_metrics(host: str, port: int, data_dir: Path, lanes: Callable[[], LaneCounts], writes: Callable[[], Numbers]) -> int:
    """Serve the metrics from daemon threads. Returns the port. Raises click.ClickException if the port cannot be used."""
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
    """The metrics of lanes and writes. The server exports the same write metrics per worker, from the workers' rows."""

    def __init__(self, lanes: Callable[[], LaneCounts], writes: Callable[[], Numbers]) -> None:
        self._lanes, self._writes = lanes, writes

    def collect(self) -> Iterator[Metric]:
        lanes, writes = self._lanes(), self._writes()
        yield gauge("worker_lanes", "Runs that can train on this worker at once.", lanes.lanes)
        yield gauge("worker_runs_training", "Runs that are training on this worker.", lanes.training)
        yield gauge("worker_prepared_processes", "Warm training processes that wait for a run.", lanes.prepared)
        meaning = "1 while this worker claims no runs because of its machine (full disk, no memory, broken GPU, missing data)."
        yield gauge("worker_quarantined", meaning, lanes.quarantined)
        for name, meaning in WRITE_COUNTERS.items():
            yield counter(f"worker_{name}", meaning, writes[name])
        yield gauge("worker_spool_bytes", "Bytes on this worker's disk that are not in the database yet.", writes["spool_bytes"])
        meaning = "Time from a flush of recorded steps to its commit."
        yield histogram("worker_write_delay_seconds", meaning, writes["bounds"], accumulate(writes["counts"]), writes["sum"])


class GpuCollector(Collector):
    """Memory and utilisation of the machine's GPUs by UUID, from nvidia-smi. Without a GPU there are no metrics."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: list[list[str]] = []
        self._queried_at = float("-inf")

    def collect(self) -> Iterator[Metric]:
        if not (lines := self._query()):
            return
        used = GaugeMetricFamily("stablessm_gpu_memory_used_bytes", "GPU memory in use, by any program.", labels=["uuid"])
        total = GaugeMetricFamily("stablessm_gpu_memory_bytes", "GPU memory.", labels=["uuid"])
        busy = GaugeMetricFamily(
            "stablessm_gpu_utilization_ratio", "Share of time during which the GPU ran a kernel.", labels=["uuid"]
        )
        for uuid, *numbers in lines:
            for family, text, scale in zip((used, total, busy), numbers, (MIB, MIB, 0.01), strict=True):
                if text.isdecimal():  # a partitioned GPU reports [N/A] instead of a utilisation
                    family.add_metric([uuid], int(text) * scale)
        yield from (used, total, busy)

    def _query(self) -> list[list[str]]:
        with self._lock:
            if time.monotonic() - self._queried_at > GPU_SECONDS and shutil.which(GPU_QUERY[0]):
                try:
                    done = subprocess.run(GPU_QUERY, capture_output=True, text=True, timeout=GPU_SECONDS, check=True)
                    split = [[part.strip() for part in line.split(",")] for line in done.stdout.splitlines()]
                    self._lines = [parts for parts in split if len(parts) == 4]
                except (OSError, subprocess.SubprocessError) as error:
                    log.debug("nvidia-smi does not answer: %s", error)
                    self._lines = []
                self._queried_at = time.monotonic()
            return self._lines
