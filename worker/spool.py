"""Records on disk for as long as the database is away: append-only, bounded, a checksum each, read back in order.

Written without fsync: it has to survive the death of the process, while after the death of the machine the run goes on from its
last recorded checkpoint anyway.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

_HEAD = struct.Struct("<II")  # length, CRC-32 of the record that follows


class Spool:
    """One file. Raises OSError when the disk refuses; never holds more than `limit_bytes`."""

    def __init__(self, path: Path, limit_bytes: int) -> None:
        self.path, self.limit_bytes = path, limit_bytes
        self._file: int | None = None
        self._end = self._read_at = 0

    def __len__(self) -> int:
        """Bytes waiting to be read."""
        return self._end - self._read_at

    def append(self, record: bytes) -> bool:
        """False when the record does not fit any more."""
        data = _HEAD.pack(len(record), zlib.crc32(record)) + record
        if self._end + len(data) > self.limit_bytes:
            return False
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
        written = 0
        while written < len(data):  # at fixed places: what a full disk cut off is simply written over the next time
            written += os.pwrite(self._file, data[written:], self._end + written)
        self._end += len(data)
        return True

    def first(self) -> bytes | None:
        """The oldest record, which stays until `drop`."""
        if self._file is None or self._read_at >= self._end:
            return None
        length, checksum = _HEAD.unpack(os.pread(self._file, _HEAD.size, self._read_at))
        record = os.pread(self._file, length, self._read_at + _HEAD.size)
        if len(record) != length or zlib.crc32(record) != checksum:
            raise OSError(f"spool {self.path} is damaged at byte {self._read_at}")
        return record

    def drop(self) -> None:
        """Forget the oldest record; once nothing is left the file goes too."""
        record = self.first()
        if record is not None:
            self._read_at += _HEAD.size + len(record)
        if self._read_at >= self._end:
            self.close()

    def close(self) -> None:
        """Remove the file and whatever is in it."""
        if self._file is not None:
            os.close(self._file)
            self._file = None
            self.path.unlink(missing_ok=True)
        self._end = self._read_at = 0


def left_behind(path: Path) -> Iterator[bytes]:
    """Records of a spool whose process is gone, up to the first one that is cut short or damaged."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        while len(head := file.read(_HEAD.size)) == _HEAD.size:
            length, checksum = _HEAD.unpack(head)
            record = file.read(length)
            if len(record) != length or zlib.crc32(record) != checksum:
                return
            yield record
