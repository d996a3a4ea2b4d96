"""Why a training process ended, as a sentence for the run's status: exit code, signal, out of memory, its last output."""

from __future__ import annotations

import errno
import re
import signal
import traceback
from pathlib import Path

from stablessm_core.forking import ForkError

LEASE_LOST = 75  # exit code: another attempt owns the run, or it is over; nothing was written after that
MAX_REASON = 1000  # characters of a reason; the run's log file has everything
MAX_FRAMES = 100  # of a traceback, the innermost
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGABRT: "abort",
    signal.SIGILL: "illegal instruction",
    signal.SIGFPE: "arithmetic error",
    signal.SIGKILL: "killed from outside",
    signal.SIGTERM: "terminated from outside",
}


def of_exit(returncode: int, out_of_memory: bool, last_output: str) -> str:
    """One sentence about a process that did not say itself how it ended; `returncode` as in subprocess (negative: a signal)."""
    if returncode < 0:
        number = -returncode
        name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
        meaning = _SIGNALS.get(signal.Signals(number), "") if number in set(signal.Signals) else ""
        if number == signal.SIGKILL and out_of_memory:
            meaning = "the kernel ran out of memory and killed a process at that time"
        cause = f"training process ended by {name}" + (f" ({meaning})" if meaning else "")
    else:
        cause = f"training process exited with code {returncode} without a result"
    return one_line(cause + (f"; last output: {last_output}" if last_output else ""))


def of_exception(error: BaseException) -> str:
    """Type and message of an exception without its trace; memory and CUDA errors named as such."""
    name, text = type(error).__name__, str(error)
    if isinstance(error, ForkError):
        return one_line(text)  # a sentence already
    if name == "OutOfMemoryError":
        return one_line(f"out of GPU memory: {text}")
    if isinstance(error, MemoryError) or "not enough memory" in text or "can't allocate memory" in text:
        return one_line(f"out of memory: {text or name}")
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return one_line(f"disk full: {text}")
    if isinstance(error, OSError) and error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return one_line(f"not writable: {text}")
    if "CUDA error" in text or name == "AcceleratorError":
        return one_line(f"CUDA error: {text}")
    return one_line(f"{name}: {text}" if text else name)


def of_trace(error: BaseException) -> str:
    """Where the exception came from: its trace, and those of its causes."""
    return "".join(traceback.format_exception(error, limit=-MAX_FRAMES))


def one_line(text: str) -> str:
    """Whitespace and control characters folded, cut to MAX_REASON characters."""
    text = re.sub(r"[\s\x00-\x1f\x7f\ud800-\udfff]+", " ", text).strip()
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


def kernel_memory_kills() -> int:
    """Processes the kernel has killed for memory so far, in our control group and on the machine; 0 where it cannot tell."""
    total = 0
    for place in ("/sys/fs/cgroup/memory.events", "/proc/vmstat"):
        try:
            lines = Path(place).read_text().splitlines()
        except OSError:
            continue
        total += sum(int(value) for key, _, value in (line.partition(" ") for line in lines) if key == "oom_kill")
    return total
