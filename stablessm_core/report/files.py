"""Reads, writes and locks files by the calls that every system has. Windows has no `os.pread`, no `os.pwrite` and no `fcntl`."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

BINARY: int = getattr(os, "O_BINARY", 0)  # Windows would change the ends of lines
CAN_REPLACE = os.name != "nt"  # Windows lets nobody put a file in the place of an open one
# Windows locks bytes, and nobody else can read a locked byte: one that lies beyond every file
LOCKED_BYTE = 1 << 40


def read_at(file: int, count: int, at: int) -> bytes:
    """Up to `count` bytes from the position `at`. The caller holds the lock of the file's user."""
    os.lseek(file, at, os.SEEK_SET)
    parts: list[bytes] = []
    while count > 0 and (part := os.read(file, count)):
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def write_at(file: int, data: bytes, at: int) -> None:
    """Write all of `data` from the position `at` on. The caller holds the lock of the file's user."""
    os.lseek(file, at, os.SEEK_SET)
    written = 0
    while written < len(data):
        written += os.write(file, data[written:])


def lock(file: int) -> None:
    """Mark the file as in use by this process, where the system can do so. The mark ends with the file's descriptor."""
    with suppress(ImportError, OSError):
        _lock(file, shared=False)


def is_locked(path: Path) -> bool:
    """True if another process has marked the file as in use."""
    try:
        with path.open("rb") as file:
            _lock(file.fileno(), shared=True)
    except (BlockingIOError, PermissionError):
        return True
    except (ImportError, OSError):  # this system or this file system knows no locks
        return False
    return False


def _lock(file: int, *, shared: bool) -> None:
    """Raises BlockingIOError or PermissionError if the file is locked, and ImportError if the system has no locks."""
    try:
        import fcntl
    except ImportError:
        import msvcrt

        calls: Any = msvcrt
        os.lseek(file, LOCKED_BYTE, os.SEEK_SET)
        calls.locking(file, calls.LK_NBLCK, 1)
        if shared:
            calls.locking(file, calls.LK_UNLCK, 1)
        return
    fcntl.flock(file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
