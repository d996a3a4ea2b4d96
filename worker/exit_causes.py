"""Describes why a training process ended, for the status of its run: exit code, signal, out of memory, last output."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from pathlib import Path

LEASE_LOST = 75  # exit code: another attempt owns the run, or the run has ended
MAX_REASON = 1000  # maximum number of characters of a reason; the run's log file has the full text
KILL_COUNTERS = ("/sys/fs/cgroup/memory.events", "/proc/vmstat")  # files with the line "oom_kill NUMBER"
_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGABRT: "abort",
    signal.SIGILL: "illegal instruction",
    signal.SIGFPE: "arithmetic error",
    signal.SIGKILL: "killed from outside",
    signal.SIGTERM: "terminated from outside",
}


def describe_exit(returncode: int, out_of_memory: bool, last_output: str) -> str:
    """One sentence for a process that ended without a message. returncode: as in subprocess, negative for a signal."""
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


def one_line(text: str) -> str:
    """The text as one line of at most MAX_REASON characters, without control characters."""
    text = re.sub(r"[\s\x00-\x1f\x7f\ud800-\udfff]+", " ", text).strip()
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 1] + "…"


def kernel_memory_kills(counters: Sequence[str] = KILL_COUNTERS) -> int:
    """Number of processes that the kernel killed for lack of memory, in this control group and on the machine; 0 if unknown."""
    total = 0
    for path in counters:
        try:
            lines = Path(path).read_text().splitlines()
        except OSError:
            continue
        total += sum(int(value) for key, _, value in (line.partition(" ") for line in lines) if key == "oom_kill")
    return total
