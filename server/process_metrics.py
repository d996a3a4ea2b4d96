"""Metrics of a process and its machine, for server and worker: CPU, memory, open files, free disk. No database is needed."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, ProcessCollector, disable_created_metrics
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

log = logging.getLogger("stablessm.metrics")

disable_created_metrics()  # type: ignore[no-untyped-call] # otherwise each counter has a second series with its creation time


def registry(data_dir: Path) -> CollectorRegistry:
    """A new registry with `process_*` metrics and the disk space of the data directory. It replaces the library's registry."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    made.register(DiskCollector(data_dir))
    return made


class DiskCollector(Collector):
    """Size and free space of the data directory's file system; no metrics while they cannot be read."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir

    def collect(self) -> Iterator[Metric]:
        try:
            disk = shutil.disk_usage(self.data_dir if self.data_dir.exists() else self.data_dir.parent)
        except OSError as error:
            log.debug("cannot read the free space of the data directory: %s", error)
            return
        yield gauge("disk_free_bytes", "Free on the data directory's file system.", disk.free)
        yield gauge("disk_size_bytes", "Size of the data directory's file system.", disk.total)


def gauge(name: str, meaning: str, value: float) -> Metric:
    return GaugeMetricFamily(f"stablessm_{name}", meaning, value)


def gauge_by(label: str, name: str, meaning: str, values: Iterable[tuple[str, float]]) -> Metric:
    family = GaugeMetricFamily(f"stablessm_{name}", meaning, labels=[label])
    for label_value, value in values:
        family.add_metric([label_value], value)
    return family


def counter(name: str, meaning: str, value: float) -> Metric:
    return CounterMetricFamily(f"stablessm_{name}", meaning, value)  # the library appends _total to the name


def histogram(name: str, meaning: str, bounds: Iterable[float], up_to: Iterable[int], total: float) -> Metric:
    return HistogramMetricFamily(f"stablessm_{name}", meaning, buckets(bounds, up_to), total)


def buckets(bounds: Iterable[float], up_to: Iterable[int]) -> list[tuple[str, float]]:
    """(upper bound, number of observations up to this bound). `up_to` has one more entry than `bounds`: the number of all
    observations."""
    return list(zip([*(f"{bound:g}" for bound in bounds), "+Inf"], map(float, up_to), strict=True))
