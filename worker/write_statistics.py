"""How well storing goes: what was handed over, stored, given up, how long it took, what waits on disk.

Each training process counts for itself and reports to its worker every few seconds. The worker adds them up, finished ones
included, and shows the sums in its row, where the server's /metrics finds them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from typing import Any

from stablessm_core.telemetry.sinks import Flush
from worker.records import Record

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
REPORT_SECONDS = 2.0

Numbers = dict[str, Any]


def zeros() -> Numbers:
    return {
        "bounds": list(BOUNDS),
        "counts": [0] * (len(BOUNDS) + 1),
        "sum": 0.0,
        "values_recorded": 0,
        "values_stored": 0,
        "values_dropped": 0,
        "spool_bytes": 0,
    }


class WriteStatistics:
    """Of one training process. Records are stored in the order in which they were handed over."""

    def __init__(self) -> None:
        self.numbers = zeros()
        self._waiting: deque[tuple[float, int]] = deque()  # since when, and how many values

    def handed_over(self, record: Record) -> None:
        values = sum(block.values.size for block in record.blocks) if isinstance(record, Flush) else 0
        self._waiting.append((time.monotonic(), values))
        self.numbers["values_recorded"] += values

    def stored(self, spool_bytes: int) -> None:
        since, values = self._waiting.popleft()
        seconds = time.monotonic() - since
        self.numbers["counts"][bisect_left(BOUNDS, seconds)] += 1
        self.numbers["sum"] += seconds
        self.numbers["values_stored"] += values
        self.numbers["spool_bytes"] = spool_bytes

    def given_up(self) -> None:
        """What waits will never be stored: no retry cures what went wrong."""
        self.numbers["values_dropped"] += sum(values for _, values in self._waiting)
        self._waiting.clear()


class WriteTotals:
    """Of one worker: the training processes that are gone, and those that are there, by run and attempt."""

    def __init__(self) -> None:
        self._gone, self._there = zeros(), dict[tuple[int, int], Numbers]()

    def update(self, run: int, attempt: int, numbers: Numbers) -> None:
        self._there[run, attempt] = numbers

    def ended(self, run: int, attempt: int) -> None:
        if (last := self._there.pop((run, attempt), None)) is not None:
            self._gone = _sum(self._gone, last | {"spool_bytes": 0})

    def total(self) -> Numbers:
        total = self._gone
        for numbers in list(self._there.values()):
            total = _sum(total, numbers)
        return total


def _sum(one: Numbers, other: Numbers) -> Numbers:
    counts = [a + b for a, b in zip(one["counts"], other["counts"], strict=True)]
    return {key: value + other[key] for key, value in one.items() if key not in ("bounds", "counts")} | {
        "bounds": one["bounds"],
        "counts": counts,
    }
