"""Notices that the wall clock has jumped, so that nothing is deleted because of a wrong date."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

JUMP_SECONDS = 600.0  # a larger difference between the wall clock and the steady clock is a jump
TRUST_SECONDS = 86_400.0  # a wall clock that has jumped is trusted again after this time

log = logging.getLogger("stablessm.clock")


def steady_seconds() -> float:
    """A clock that nobody sets. On Linux it also counts the time while the machine is suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class ClockJumps:
    """Compares the wall clock with a steady clock since the process started. Call `jumped` at least once an hour."""

    def __init__(self, wall: Callable[[], float] | None = None, steady: Callable[[], float] = steady_seconds) -> None:
        self._wall, self._steady = wall or (lambda: time.time()), steady
        self._offset = self._wall() - steady()
        self._since: float | None = None

    def jumped(self) -> bool:
        """True for a day after the wall clock has jumped, or until it has returned to its earlier course."""
        now = self._steady()
        offset = self._wall() - now
        change = offset - self._offset
        if abs(change) < JUMP_SECONDS:
            self._offset, self._since = offset, None  # follow a clock that is slowly corrected
            return False
        if self._since is None:
            self._since = now
            log.warning(
                "the wall clock has jumped by %+.0f s: nothing is deleted by its age for a day, or until it is back", change
            )
        if now - self._since < TRUST_SECONDS:
            return True
        self._offset, self._since = offset, None
        return False
