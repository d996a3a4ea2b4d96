"""The limits of an autopsy: its time, and the wish to stop it.

The time is the processor time of the calling thread, which equals elapsed time on a machine that does nothing else. An autopsy
has a low priority, so elapsed time would say more about other processes than about its cost.
"""

from __future__ import annotations

from collections.abc import Callable
from time import thread_time


class Refused(Exception):
    """The autopsy has no result. The message is a sentence for users."""


class Deadline:
    """The time at which an autopsy must end. `passed` raises Refused if the autopsy is stopped."""

    def __init__(self, seconds: float, should_stop: Callable[[], bool]) -> None:
        self.began, self.seconds, self._should_stop = thread_time(), seconds, should_stop

    def passed(self) -> bool:
        if self._should_stop():
            raise Refused("The autopsy was stopped before it ended.")
        return self.left() <= 0

    def left(self) -> float:
        """The remaining time in seconds; negative after the end."""
        return self.began + self.seconds - thread_time()

    def extended(self, seconds: float) -> Deadline:
        """A deadline that leaves at least `seconds` from now on."""
        return Deadline(max(seconds, self.left()), self._should_stop)

    def elapsed(self) -> float:
        return thread_time() - self.began
