"""Why this worker claims no runs at present: its disk is full, or several runs in a row failed because of this machine.

A full disk stops the claims at once, and they start again as soon as there is room. For memory, GPU and data, one failure may
have another cause, so the claims stop after IN_A_ROW failures. Then the worker tries a single run after a pause, which doubles
with each further failure. A run that trains to its end clears everything.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

Kind = Literal["disk", "memory", "gpu", "data"]

IN_A_ROW = 3  # number of failures in a row, all because of this machine, after which the worker stops claiming
RETRY_SECONDS = (60.0, 900.0)  # first and longest pause before the worker tries a single run
FULL_SECONDS = (30.0, 600.0)  # the same after a full disk, if no space was freed: a quota or a large file may be the cause
MIB = 1 << 20
PROBE_BYTES = 64 << 10
WHAT = {
    "disk": "its disk is full or cannot be written",
    "memory": "its memory is used up",
    "gpu": "its GPU does not work",
    "data": "data sets are missing",
}

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Reason:
    """Why a worker claims no runs: the kind, one sentence, and the time since when (UTC epoch seconds)."""

    kind: Kind
    reason: str
    since: float


class Quarantine:
    """The quarantine of one worker. The lanes ask `admits` before each claim and report how runs ended.

    min_free: the free space in bytes that the worker wants in its data directory. on_change: called after the reason has changed.
    """

    def __init__(
        self,
        data_dir: Path,
        min_free: int,
        on_change: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._data_dir, self._min_free, self._on_change, self._clock = data_dir, min_free, on_change, clock
        self._lock = threading.RLock()
        self._reason: Reason | None = None
        self._in_a_row = 0
        self._pauses = 0  # number of pauses since the last run that trained to its end
        self._retry_at = 0.0
        self._wanted = 0  # free bytes at which a full disk has room again, before the pause has ended

    @property
    def reason(self) -> Reason | None:
        return self._reason

    def shown(self) -> dict[str, Any]:
        """The entry in the worker's capabilities; empty while the worker claims runs."""
        reason = self._reason
        return {} if reason is None else {"quarantine": asdict(reason)}

    def admits(self, training: int) -> bool:
        """True if a lane may claim a run now. training: the number of runs that train on this worker."""
        with self._lock:
            if self._reason is None:
                return self._has_room()
            if self._reason.kind == "disk":
                return self._has_room_again()
            return training == 0 and self._clock() >= self._retry_at and self._has_room()

    def lacks_room(self) -> bool:
        """True if a run in training must be given back: less than half of the wanted space is free. The other half is for the
        run's last checkpoint."""
        with self._lock:
            free = _free(self._data_dir)
            if free is None or free >= self._min_free // 2:
                return False
            self._stop_for_space(free)
            return True

    def blame(self, kind: Kind, run_id: int, reason: str) -> None:
        """Record that a run could not be trained because of this machine."""
        with self._lock:
            self._in_a_row += 1
            if kind == "disk":
                self._pause(FULL_SECONDS)
                self._wanted = (_free(self._data_dir) or 0) + max(self._min_free, MIB)
                self._stop(kind, f"{WHAT[kind]}: run {run_id}: {reason}")
            elif self._in_a_row >= IN_A_ROW:
                self._pause(RETRY_SECONDS)
                self._stop(kind, f"{WHAT[kind]}: {self._in_a_row} runs in a row failed; the last, run {run_id}: {reason}")

    def trained(self) -> None:
        """Record that a run trained to its end on this machine."""
        with self._lock:
            self._in_a_row = self._pauses = 0
            if self._reason is not None and self._reason.kind != "disk":
                self._clear()

    def _has_room(self) -> bool:
        free = _free(self._data_dir)
        if free is None or free >= self._min_free:
            return True
        self._wanted, self._retry_at = self._min_free, self._clock()
        self._stop_for_space(free)
        return False

    def _has_room_again(self) -> bool:
        free = _free(self._data_dir)
        if free is not None and (free < self._min_free or (free < self._wanted and self._clock() < self._retry_at)):
            return False
        if not _is_writable(self._data_dir):
            return False
        self._clear()
        return True

    def _stop_for_space(self, free: int) -> None:
        if self._reason is None or self._reason.kind != "disk":
            wanted = f"{self._min_free / MIB:.0f} MiB are wanted (STABLESSM_MIN_FREE_MIB)"
            self._stop("disk", f"{WHAT['disk']}: {free / MIB:.0f} MiB are free in the data directory, {wanted}")

    def _stop(self, kind: Kind, reason: str) -> None:
        self._reason = Reason(kind, reason, time.time())
        log.error("this worker claims no runs: %s", reason)
        self._on_change()

    def _clear(self) -> None:
        self._reason, self._in_a_row = None, 0
        log.warning("this worker claims runs again")
        self._on_change()

    def _pause(self, seconds: tuple[float, float]) -> None:
        first, longest = seconds
        if self._clock() < self._retry_at:
            return  # another lane has met the same fault
        self._retry_at = self._clock() + min(longest, first * 2**self._pauses)
        self._pauses += 1


def _places(data_dir: Path) -> list[Path]:
    return [data_dir, data_dir / "runs"]  # the runs may lie on a file system of their own


def _free(data_dir: Path) -> int | None:
    """Free bytes for this user in the data directory; None if they cannot be read."""
    found = []
    for place in _places(data_dir):
        try:
            system = os.statvfs(place)
        except OSError:
            continue  # the folder does not exist yet, or cannot be reached; a write will show that
        found.append(system.f_bavail * system.f_frsize)
    return min(found, default=None)


def _is_writable(data_dir: Path) -> bool:
    """True if a small file can be written beside the runs. A quota or a read-only file system shows only in a write."""
    for place in _places(data_dir):
        probe = place / f".room-{os.getpid()}"
        try:
            place.mkdir(parents=True, exist_ok=True)
            with probe.open("wb") as file:
                file.write(bytes(PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            return False
        finally:
            try:
                probe.unlink(missing_ok=True)
            except OSError:
                pass  # a read-only file system has no such file
    return True


def memory_is_short() -> bool:
    """True if this machine lacks memory now, although the run that ran out of memory has ended: other programs use it."""
    left = [(available, total) for available, total in (_machine_memory(), _group_memory()) if total]
    return any(available < min(1 << 30, total // 10) for available, total in left)


def available_memory() -> int:
    """The bytes that new processes of this worker may use; 0 if unknown."""
    return min((available for available, total in (_machine_memory(), _group_memory()) if total), default=0)


def _machine_memory() -> tuple[int, int]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 0, 0
    known = {name: int(text.split()[0]) << 10 for name, _, text in (line.partition(":") for line in lines)}
    return known.get("MemAvailable", 0), known.get("MemTotal", 0)


def _group_memory(folder: Path = Path("/sys/fs/cgroup")) -> tuple[int, int]:
    """Available and allowed bytes of this control group; (0, 0) without a limit."""
    try:
        limit, used = (folder / "memory.max").read_text().strip(), int((folder / "memory.current").read_text())
        stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
        cached = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
        return int(limit) - used + cached, int(limit)
    except (OSError, ValueError):
        return 0, 0
