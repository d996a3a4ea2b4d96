"""The file of a run: a line with the format's name, the request that opens the run, and one frame for each message.

Frames are only ever appended, so the file of a killed process is readable up to its last whole frame. It is written without
fsync: it must survive a crash of the process, not of the machine. `from_step` stays in the opening until the server has deleted
the steps after it. A program that must not wait keeps its frames in memory if the disk fails; a worker lets training wait.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stablessm_core.report import files
from stablessm_core.report.files import BINARY, is_locked, lock, read_at, write_at
from stablessm_core.report.frames import HEAD, ends, frame, read_file

MAGIC = b"SSMR1\n"
SUFFIX = ".ssmr"
LONGEST = 1 << 26  # longest record in bytes; a length above it is damage
COPIED = 1 << 25  # bytes of frames that are copied for a new opening at most
IN_MEMORY = 1 << 25  # bytes of frames that a reporting program keeps without a disk


class NotARunFile(ValueError):
    """A file that does not hold the records of a run."""


class Outbox:
    """Frames that wait to be sent, in a file, or in memory if the disk fails. All methods may be called from any thread.

    warn: receives one sentence when the disk fails. file_bytes: the largest size of the frames in the file; None for no limit.
    memory_bytes: of the frames that are kept in memory at most. Positions count bytes of frames; the first frame has position 0.
    """

    def __init__(
        self,
        path: Path | None,
        opening: dict[str, Any],
        warn: Callable[[str], object],
        *,
        file_bytes: int | None = None,
        memory_bytes: int = IN_MEMORY,
    ) -> None:
        self.path, self._warn, self._file_bytes, self._memory_bytes = path, warn, file_bytes, memory_bytes
        self.size = 0
        self.dropped = 0  # frames that found no place
        self._lock = threading.Lock()
        self._file: int | None = None
        self._writable = False
        self._memory, self._memory_from = bytearray(), 0
        self._start = 0
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | BINARY, 0o600)
                lock(self._file)
                self._write_opening(opening)
                self._writable = True
            except OSError as error:
                self._disk_failed(error)

    @property
    def failed(self) -> bool:
        """True if the disk has failed."""
        return not self._writable

    def reopen(self, opening: dict[str, Any]) -> bool:
        """Replace the opening request. False if too many frames follow it in the file, because they must be copied."""
        with self._lock:
            if self.size > COPIED:
                return False
            if self._writable:
                try:
                    if self.size:
                        self._copy_with(opening)
                    else:
                        self._write_opening(opening)
                except OSError as error:
                    self._disk_failed(error)
            return True

    def drop_from_step(self) -> None:
        """Note in the file that the server has deleted the steps after `from_step`, so that nobody deletes them again."""
        with self._lock:
            if self._file is not None and self._start:
                with suppress(OSError):
                    _drop_from_step(self._file)

    def append(self, record: bytes) -> bool:
        """Add a record. False if there is no place for it; it is then counted as dropped. Never raises for a full disk."""
        data = frame(record)
        with self._lock:
            if self._writable and self._file is not None:
                if self._file_bytes is not None and self.size + len(data) > self._file_bytes:
                    self.dropped += 1
                    return False
                try:
                    # at a fixed place, so that the next frame overwrites one that a full disk cut short
                    write_at(self._file, data, self._start + self.size)
                    self.size += len(data)
                    return True
                except OSError as error:
                    self._disk_failed(error)
            if len(self._memory) + len(data) > self._memory_bytes:
                self.dropped += 1
                return False
            self._memory += data
            self.size += len(data)
            return True

    def read(self, position: int, limit: int) -> bytes:
        """Whole frames from `position` on, at most `limit` bytes but at least one frame; b"" if there is none."""
        with self._lock:
            if not (position < self._memory_from or self._writable):
                at, held = position - self._memory_from, self._memory
                return _whole(lambda count: bytes(held[at : at + count]), limit)
            if (file := self._file) is None:
                return b""
            left = (self.size if self._writable else self._memory_from) - position
            return _whole(lambda count: read_at(file, min(count, left), self._start + position), limit)

    def in_memory(self, position: int) -> int:
        """The bytes of the frames from `position` on that are in no file."""
        with self._lock:
            return 0 if self._writable else max(0, self.size - max(position, self._memory_from))

    def release(self, position: int) -> None:
        """Forget the frames before `position` that are kept in memory."""
        with self._lock:
            if not self._writable and position > self._memory_from:
                del self._memory[: position - self._memory_from]
                self._memory_from = position

    def close(self, *, delete: bool) -> None:
        """Close the file; delete it if everything in it is stored elsewhere."""
        with self._lock:
            if self._file is not None:
                with suppress(OSError):
                    os.close(self._file)  # before it is deleted, because Windows deletes no open file
                if delete and self.path is not None:
                    with suppress(OSError):
                        self.path.unlink()
            self._file, self._writable = None, False

    def abandon(self) -> None:
        """Close the file in a forked child, where no lock may be awaited."""
        file, self._file, self._writable = self._file, None, False
        if file is not None:
            with suppress(OSError):
                os.close(file)

    def _write_opening(self, opening: dict[str, Any]) -> None:
        assert self._file is not None
        data = MAGIC + frame(json.dumps(opening).encode())
        self._start = 0
        os.ftruncate(self._file, 0)
        write_at(self._file, data, 0)
        self._start = len(data)

    def _copy_with(self, opening: dict[str, Any]) -> None:
        """Put a copy of the file with another opening in its place. A process that is killed meanwhile leaves the old file."""
        assert self._file is not None
        assert self.path is not None
        begin, copy = MAGIC + frame(json.dumps(opening).encode()), self.path.with_name(self.path.name + ".new")
        if not files.CAN_REPLACE:
            write_at(self._file, begin + read_at(self._file, self.size, self._start), 0)
            os.ftruncate(self._file, len(begin) + self.size)
            self._start = len(begin)
            return
        new = os.open(copy, os.O_RDWR | os.O_CREAT | os.O_TRUNC | BINARY, 0o600)
        try:
            lock(new)
            write_at(new, begin + read_at(self._file, self.size, self._start), 0)
            os.replace(copy, self.path)
        except OSError:
            os.close(new)
            copy.unlink(missing_ok=True)
            raise
        os.close(self._file)
        self._file, self._start = new, len(begin)

    def _disk_failed(self, error: OSError) -> None:
        self._writable, self._memory_from = False, self.size
        opened = self._file is not None
        if self._file is not None and self.size == 0:
            os.close(self._file)
            self._file = None
        self._warn(f"cannot write {self.path} ({error.strerror or error}); further numbers are kept in memory only")
        if self._start == 0:  # not even its opening is whole
            if opened and self.path is not None:
                with suppress(OSError):
                    self.path.unlink()
            self.path = None


@dataclass
class RunFile:
    """The content of a run's file. damaged: the byte at which the first bad frame begins; None if all frames are whole."""

    path: Path
    opening: dict[str, Any]
    damaged: int | None = None

    def drop_from_step(self) -> None:
        """Note that the server has deleted the steps after `from_step`, so that the next `sync` does not delete them again."""
        written = self.path.stat()
        with self.path.open("r+b") as file:
            _drop_from_step(file.fileno())
        os.utime(self.path, ns=(written.st_atime_ns, written.st_mtime_ns))  # files are sent in the order of these times

    def records(self) -> Iterator[bytes]:
        """The records up to the first bad frame. Sets `damaged`."""
        self.damaged = None
        with self.path.open("rb") as file:
            file.seek(len(MAGIC))
            records = read_file(file, LONGEST)
            next(records, None)  # the opening
            yield from records
            at = file.tell()
            if file.read(1):
                self.damaged = at


def read_run_file(path: Path) -> RunFile:
    """The run in a file. Raises NotARunFile if there is none, and OSError if the file cannot be read."""
    with path.open("rb") as file:
        if file.read(len(MAGIC)) != MAGIC:
            raise NotARunFile(f"{path} is no file of a StableSSM run")
        try:
            opening = json.loads(next(read_file(file, LONGEST), b""))
        except ValueError:
            opening = None
        if not isinstance(opening, dict) or not isinstance(opening.get("id"), str):
            raise NotARunFile(f"{path} is damaged at its beginning")
        return RunFile(path, opening)


def left_behind(path: Path) -> Iterator[bytes]:
    """The records that a process of our own has left in the file, up to the first bad frame; none if there is no file.

    The files of workers of version 0.2 and older hold frames only.
    """
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return
    with file:
        records = read_file(file, LONGEST)
        if file.read(len(MAGIC)) == MAGIC:
            next(records, None)
        else:
            file.seek(0)
        yield from records


def in_use(path: Path) -> bool:
    """True if the process that writes the file still runs."""
    return is_locked(path)


def _whole(read: Callable[[int], bytes], limit: int) -> bytes:
    """The whole frames in the first `limit` bytes, or else the first frame. read: returns the first bytes, so many as asked."""
    data = read(max(limit, HEAD.size))
    *_, end = 0, *ends(data)
    if not end and len(data) >= HEAD.size:
        data = read(HEAD.size + HEAD.unpack_from(data)[0])
        *_, end = 0, *ends(data)
    return data[:end]


def _drop_from_step(file: int) -> None:
    """Overwrite the opening with one of the same length, padded with spaces."""
    length, _ = HEAD.unpack(read_at(file, HEAD.size, len(MAGIC)))
    opening = json.loads(read_at(file, length, len(MAGIC) + HEAD.size))
    if opening.pop("from_step", None) is not None:
        write_at(file, frame(json.dumps(opening).encode().ljust(length)), len(MAGIC))
