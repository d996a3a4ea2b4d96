"""Counts what forked children of a process report, so that their parent can say how much of it is not recorded."""

from __future__ import annotations

import os
from contextlib import suppress

CAPACITY = 1 << 16  # values that are counted at most, because a pipe holds so many bytes


class ForkCounter:
    """A pipe that is made before the first fork. Each value that a child reports is one byte in it."""

    def __init__(self) -> None:
        self._ends: tuple[int, int] | None = None
        self._read = 0

    def open(self) -> None:
        """Call this before a fork."""
        if self._ends is None:
            with suppress(OSError):
                self._ends = os.pipe()
                for end in self._ends:
                    os.set_blocking(end, False)

    def count(self) -> None:
        """One value, in a child. Never waits."""
        if self._ends is not None:
            with suppress(OSError):  # the pipe is full, or the parent has ended
                os.write(self._ends[1], b"x")

    def counted(self) -> int:
        """The number of values in the children so far, in the parent."""
        if self._ends is not None:
            with suppress(OSError):
                self._read += len(os.read(self._ends[0], CAPACITY))
        return self._read

    def close(self) -> None:
        """Free the pipe."""
        ends, self._ends = self._ends, None
        for end in ends or ():
            with suppress(OSError):
                os.close(end)
