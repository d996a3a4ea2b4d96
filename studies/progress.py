"""Wait for the sweeps of a study and report progress regularly, with the time left."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stablessm_core.client import Client

POLL_SECONDS = 2.0
REPORT_SECONDS = 15.0


def wait_for_sweeps(client: Client, sweep_ids: Sequence[int], report: Callable[[str], None]) -> None:
    """Return when every run of the sweeps has ended. `report` receives lines of progress with the time left."""
    started, reported_at, ended_before = time.monotonic(), 0.0, None
    while True:
        sweeps = _counts(client, sweep_ids)
        total, unfinished = (sum(int(sweep[what]) for sweep in sweeps) for what in ("total", "open"))
        ended, now = total - unfinished, time.monotonic()
        ended_before = ended if ended_before is None else ended_before
        if now - reported_at > REPORT_SECONDS or not unfinished:
            reported_at = now
            report(f"{ended:,} of {total:,} runs have ended" + left(ended - ended_before, unfinished, now - started))
        if not unfinished:
            return
        time.sleep(POLL_SECONDS)


def _counts(client: Client, sweep_ids: Sequence[int]) -> list[dict[str, Any]]:
    """The sweeps with the numbers of their runs. They are taken from the list of all sweeps: a sweep's own page describes each
    of its runs, which for a study of 2,000 runs takes the server seconds."""
    wanted, found = set(sweep_ids), []
    for sweep in client.sweeps():
        if sweep["id"] in wanted:
            wanted.discard(sweep["id"])
            found.append(sweep)
        if not wanted:
            break
    return found + [client.sweep(missing) for missing in sorted(wanted)]  # raises the server's error


def left(done: int, unfinished: int, seconds: float) -> str:
    """The time left in words, if `done` runs took `seconds`; empty if nothing has ended yet or nothing is left."""
    if done <= 0 or unfinished <= 0:
        return ""
    rest = seconds / done * unfinished
    return f", about {rest:.0f} s left" if rest < 120 else f", about {rest / 60:.0f} min left"
