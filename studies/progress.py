"""Wait for the sweeps of a study and report progress regularly."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from stablessm_core.telemetry.statuses import OPEN

if TYPE_CHECKING:
    from stablessm_core.client import Client

POLL_SECONDS = 2.0
REPORT_SECONDS = 15.0


def wait_for_sweeps(client: Client, sweep_ids: Sequence[int], report: Callable[[str], None]) -> None:
    """Return when every run of the sweeps has ended. `report` receives each line of progress."""
    reported_at = 0.0
    while True:
        sweeps = [client.sweep(sweep_id) for sweep_id in sweep_ids]
        total = sum(sweep["total"] for sweep in sweeps)
        unfinished = sum(sweep["statuses"].get(status, 0) for sweep in sweeps for status in OPEN)
        if time.monotonic() - reported_at > REPORT_SECONDS or not unfinished:
            reported_at = time.monotonic()
            report(f"{total - unfinished:,} of {total:,} runs have ended")
        if not unfinished:
            return
        time.sleep(POLL_SECONDS)
