"""A process that ends when the process that started it is gone, however that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # of <linux/prctl.h>


def die_with_parent(parent: int, number: signal.Signals = signal.SIGTERM) -> None:
    """This process gets the signal `number` when `parent`, which started it, is gone; it ends at once if that is so already."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it was gone before the kernel was asked
        sys.exit(f"process {parent}, which started this one, is gone")
