"""A file that buffers entries while the database is unavailable. It is append-only and bounded, entries are read in order, and
each entry has a checksum.

The file is written without fsync, because it only needs to survive a crash of the process, not of the machine. After a crash of
the machine, the run resumes from its last stored checkpoint anyway.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from pathlib import Path

from stablessm_core.telemetry.frames import HEAD, pack, read_file


class Spool:
    """One file of at most `limit_bytes`. Its methods raise OSError if the disk fails."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self._file: int | None = None
        self._end = self._read_at = 0

    def __len__(self) -> int:
        """Bytes waiting to be read."""
        return self._end - self._read_at

    def append(self, entry: bytes) -> bool:
        """Append an entry. Returns False if the file would exceed its limit."""
        data = pack([entry])
        if self._end + len(data) > self.limit_bytes:
            return False
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        written = 0
        while written < len(data):  # at fixed offsets, so that the next append overwrites an entry that a full disk truncated
            written += os.pwrite(self._file, data[written:], self._end + written)
        self._end += len(data)
        return True

    def first(self) -> bytes | None:
        """The oldest entry, which stays until `drop`; None if there is no entry."""
        if self._file is None or self._read_at >= self._end:
            return None
        length, checksum = HEAD.unpack(os.pread(self._file, HEAD.size, self._read_at))
        entry = os.pread(self._file, length, self._read_at + HEAD.size)
        if len(entry) != length or zlib.crc32(entry) != checksum:
            raise OSError(f"spool {self.path} is damaged at byte {self._read_at}")
        return entry

    def drop(self) -> None:
        """Remove the oldest entry. Deletes the file if no entry is left."""
        entry = self.first()
        if entry is not None:
            self._read_at += HEAD.size + len(entry)
        if self._read_at >= self._end:
            self.close()

    def close(self) -> None:
        """Delete the file with all entries."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self.path.unlink(missing_ok=True)
        self._end = self._read_at = 0


def left_behind(path: Path) -> Iterator[bytes]:
    """The entries in the spool of a process that has ended, up to the first truncated or damaged entry."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        yield from read_file(file, path.stat().st_size)
