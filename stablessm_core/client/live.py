"""Follow a run while it trains. No live event is lost, even if the connection breaks or the server restarts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stablessm_core.client.connection import ConnectionLost
from stablessm_core.client.runs import RunMethods
from stablessm_core.client.series import Series
from stablessm_core.telemetry import typed_arrays
from stablessm_core.telemetry.statuses import FINAL

RETRY_SECONDS = (0.2, 0.5, 1.0, 2.0, 5.0)


@dataclass(frozen=True)
class LiveEvent:
    """One event of the live stream. kind: points, alert, status, autopsy, reset or live. series: the new points by name."""

    kind: str
    id: str
    data: dict[str, Any]
    series: dict[str, Series] = field(default_factory=dict)


class LiveMethods(RunMethods):
    """The method of `Client` that follows a run while it trains."""

    def watch(
        self,
        run_id: int,
        *,
        after: str | int | None = None,
        series: Sequence[str] | None = None,
        patience: float = 60.0,
    ) -> Iterator[LiveEvent]:
        """Live events until the run ends. If the connection breaks, the client tries to reconnect for `patience` seconds.

        No event is lost or repeated.
        """
        if after is not None:
            now = self.run(run_id)
            if now["status"] in FINAL and now["seq"] <= int(str(after).partition(".")[0]):
                return
        position, failures, connected_at = after, 0, time.monotonic()
        while True:
            try:
                for event in self._events(run_id, position, series):
                    position, failures, connected_at = event.id or position, 0, time.monotonic()
                    yield event
                    if event.kind == "autopsy" or (event.kind == "status" and event.data["status"] in FINAL):
                        return  # only ended runs have autopsies
            except ConnectionLost:
                if time.monotonic() - connected_at > patience:
                    raise
            time.sleep(RETRY_SECONDS[min(failures, len(RETRY_SECONDS) - 1)])
            failures += 1

    def _events(self, run_id: int, position: str | int | None, series: Sequence[str] | None) -> Iterator[LiveEvent]:
        headers = {"Last-Event-ID": str(position)} if position is not None else {}
        wanted = ",".join(series) if series is not None else None
        parts: dict[str, str] = {}
        for line in self.lines(f"/api/runs/{run_id}/stream", headers, series=wanted):
            if line:
                name, _, value = line.partition(":")
                parts[name] = value.removeprefix(" ")
                continue
            if "data" in parts:
                yield _event(parts["event"], parts.get("id", ""), json.loads(parts["data"]))
            parts = {}


def _event(kind: str, event_id: str, data: dict[str, Any]) -> LiveEvent:
    found = {}
    for one in data.pop("series", []) if kind == "points" else []:
        value = typed_arrays.decode(one["value"])
        value = value.reshape(-1) if one["width"] == 1 else value
        found[one["name"]] = Series(one["name"], "", typed_arrays.decode(one["step"]).astype(np.int64), value)
    return LiveEvent(kind, event_id, data, found)
