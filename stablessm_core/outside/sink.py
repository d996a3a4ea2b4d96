"""The sink of a watched run: writes each message into the outbox, in records that a server accepts."""

from __future__ import annotations

from typing import Any

from stablessm_core.report.messages import COMPUTES_ALERTS, EnvironmentMessage, TelemetryMessage, catalogues, parts, to_bytes
from stablessm_core.report.outbox import Outbox
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sink import Flush


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
        self.put(EnvironmentMessage(self.facts | {COMPUTES_ALERTS: True}))
        for message in catalogues(series):
            self.put(message)

    def write(self, flush: Flush) -> None:
        for part in parts(flush):
            self.put(part)
        self.step = max(self.step, flush.step)
