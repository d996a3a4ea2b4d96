"""Counts the writes of a worker: values recorded, stored and dropped, the delay of writes, and the data that waits on disk.

Each training process counts its own writes and reports them to its worker every few seconds. The worker adds up the counts,
including those of ended processes, and stores the sums in the worker's row, from which the server's /metrics reads them.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import deque
from typing import Any

from stablessm_core.report.messages import TelemetryMessage
from stablessm_core.telemetry.sink import Flush

BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0)
REPORT_SECONDS = 2.0

Numbers = dict[str, Any]


def zeros() -> Numbers:
    """The counts before the first write. counts: writes per delay bucket; sum: the sum of the delays in seconds."""
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
    """The counts of one training process. Messages are stored in the order in which they were recorded."""

    def __init__(self) -> None:
        self.numbers = zeros()
        self._waiting: deque[tuple[float, int]] = deque()  # (recording time, number of values) of each message not stored yet

    def count_recorded(self, message: TelemetryMessage) -> None:
        values = sum(block.values.size for block in message.blocks) if isinstance(message, Flush) else 0
        self._waiting.append((time.monotonic(), values))
        self.numbers["values_recorded"] += values

    def count_stored(self, spool_bytes: int) -> None:
        since, values = self._waiting.popleft()
        seconds = time.monotonic() - since
        self.numbers["counts"][bisect_left(BOUNDS, seconds)] += 1
        self.numbers["sum"] += seconds
        self.numbers["values_stored"] += values
        self.numbers["spool_bytes"] = spool_bytes

    def count_dropped(self) -> None:
        """Count all waiting messages as dropped, after an error that retrying cannot fix."""
        self.numbers["values_dropped"] += sum(values for _, values in self._waiting)
        self._waiting.clear()


class WriteTotals:
    """The counts of one worker: sums over its ended and its current training processes."""

    def __init__(self) -> None:
        self._ended, self._current = zeros(), dict[tuple[int, int], Numbers]()  # `_current`: (run, attempt) -> its counts

    def update(self, run: int, attempt: int, numbers: Numbers) -> None:
        self._current[run, attempt] = numbers

    def ended(self, run: int, attempt: int) -> None:
        if (last := self._current.pop((run, attempt), None)) is not None:
            self._ended = _sum(self._ended, last | {"spool_bytes": 0})

    def total(self) -> Numbers:
        total = self._ended
        for numbers in list(self._current.values()):
            total = _sum(total, numbers)
        return total


def _sum(one: Numbers, other: Numbers) -> Numbers:
    counts = [a + b for a, b in zip(one["counts"], other["counts"], strict=True)]
    return {key: value + other[key] for key, value in one.items() if key not in ("bounds", "counts")} | {
        "bounds": one["bounds"],
        "counts": counts,
    }
