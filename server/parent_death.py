"""Makes a process end when its parent process ends, for whatever reason, and names it in lists of processes."""

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


def name_process(name: str) -> None:
    """Let `ps` and `top` show this process as `name`. Its arguments, which may contain passwords, disappear."""
    # read by setproctitle at its first call: /proc/PID/environ, by which programs find their processes, stays as it is
    os.environ.setdefault("SPT_NOENV", "1")
    from setproctitle import setproctitle  # imported late, because it reads the variable

    setproctitle(name)
