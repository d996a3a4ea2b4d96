"""Makes a process end when its parent process ends, for whatever reason."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """Send this process the signal `number` when its parent `parent` ends; exit at once if the parent has already ended."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # the parent ended before prctl was called
        sys.exit(f"the parent process {parent} has ended")
