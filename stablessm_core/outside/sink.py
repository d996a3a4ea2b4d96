"""The sink of a watched run: writes each message into the outbox, in records that a server accepts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from stablessm_core.outside.offline import Outbox
from stablessm_core.telemetry.blocks import Block
from stablessm_core.telemetry.messages import CatalogueMessage, EnvironmentMessage, TelemetryMessage, to_bytes
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush

RECORD_BYTES = 2 << 20  # bytes of numbers in a record, before compression
MAX_SERIES, MAX_ALERTS, MAX_BLOCKS, MAX_POINTS = 4096, 200, 1024, 4096


class OutsideSink:
    """Implements `Sink`. step: the last step that was written. facts: about the environment, sent before the catalogue."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox = outbox
        self.step = 0
        self.facts: dict[str, Any] = {}

    def put(self, message: TelemetryMessage) -> None:
        """Write a message."""
        self._outbox.append(to_bytes(message))

    def open(self, series: list[SeriesSpec]) -> None:
        self.put(EnvironmentMessage(self.facts))
        for i in range(0, len(series), MAX_SERIES):
            self.put(CatalogueMessage(series[i : i + MAX_SERIES]))

    def write(self, flush: Flush) -> None:
        for part in _parts(flush):
            self.put(part)
        self.step = max(self.step, flush.step)


def _parts(flush: Flush) -> Iterator[Flush]:
    """The flush in parts of at most RECORD_BYTES of numbers. All parts name the flush's step; only the last has its alerts."""
    waiting: list[Block] = []
    size = 0
    for block in (piece for whole in flush.blocks for piece in _pieces(whole)):
        if waiting and (size + block.values.nbytes > RECORD_BYTES or len(waiting) == MAX_BLOCKS):
            yield Flush(waiting, [], flush.step, flush.steps_per_second, {})
            waiting, size = [], 0
        waiting.append(block)
        size += block.values.nbytes
    alerts = flush.alerts
    while len(alerts) > MAX_ALERTS:
        yield Flush([], alerts[:MAX_ALERTS], flush.step, None)
        alerts = alerts[MAX_ALERTS:]
    yield Flush(waiting, alerts, flush.step, flush.steps_per_second, flush.so_far)


def _pieces(block: Block) -> Iterator[Block]:
    """The block in pieces of at most RECORD_BYTES, unless one point is larger."""
    values = block.values
    points = min(MAX_POINTS, max(1, RECORD_BYTES // max(1, values.nbytes // max(1, block.point_count))))
    if block.point_count <= points:
        yield block
        return
    for i in range(0, block.point_count, points):
        part = np.ascontiguousarray(values[..., i : i + points])
        yield Block(block.group, block.level, block.first_step + i * block.stride, block.stride, part)
