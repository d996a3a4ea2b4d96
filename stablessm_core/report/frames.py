"""Frames: the bytes in which messages travel to the server, and in which they wait in a file.

A frame is the length of its record (u32), the CRC-32 of its record (u32), both little-endian, and the record, which is what
`messages.to_bytes` returns. The reader of a body trusts no byte: every size is bounded before memory of that size is allocated.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

HEAD = struct.Struct("<II")  # length and CRC-32 of the record that follows
CONTENT_TYPE = "application/vnd.stablessm.records"


@dataclass(frozen=True)
class Limits:
    """What one body may contain. body_bytes: the whole body. record_bytes: one record. decoded_bytes: all blocks of the body
    after decompression. records: the number of frames. keys: the number of free metrics of a run."""

    body_bytes: int = 4 << 20
    record_bytes: int = (4 << 20) - HEAD.size
    decoded_bytes: int = 64 << 20
    records: int = 1000
    keys: int = 2000


LIMITS = Limits()


class BadFrame(ValueError):
    """A frame that can never be stored. index: its number in the body, from 0. field: the part of the record that is wrong, with
    dots; "" if the frame itself is. given, allowed: as text."""

    def __init__(self, index: int, field: str, given: str, allowed: str) -> None:
        self.index, self.field, self.given, self.allowed = index, field, given, allowed
        super().__init__(f"frame {index}: {field + ' ' if field else ''}is {given}; allowed: {allowed}")


def frame(record: bytes) -> bytes:
    """The frame of a record."""
    return HEAD.pack(len(record), zlib.crc32(record)) + record


def pack(records: Iterable[bytes]) -> bytes:
    """The frames of these records, one after the other."""
    return b"".join(map(frame, records))


def ends(data: bytes) -> Iterator[int]:
    """Where each of the whole frames at the beginning of `data` ends. The records are not compared with their checksums."""
    at = 0
    while len(data) - at >= HEAD.size:
        at += HEAD.size + HEAD.unpack_from(data, at)[0]
        if at > len(data):
            return
        yield at


def unpack(body: bytes, limits: Limits = LIMITS) -> Iterator[memoryview]:
    """The records in a body, without copying them. Raises BadFrame at the first frame that is cut short, too long or damaged."""
    view, at, index = memoryview(body), 0, 0
    while at < len(view):
        if index == limits.records:
            raise BadFrame(index, "", "one frame too many", f"{limits.records:,} frames in a body")
        if len(view) - at < HEAD.size:
            raise BadFrame(index, "", f"{len(view) - at} bytes long", f"at least {HEAD.size} bytes: length and CRC-32")
        length, checksum = HEAD.unpack_from(view, at)
        at += HEAD.size
        if length > limits.record_bytes:
            raise BadFrame(index, "length", f"{length:,}", f"at most {limits.record_bytes:,} bytes")
        if length > len(view) - at:
            raise BadFrame(index, "length", f"{length:,}", f"at most the {len(view) - at:,} bytes that follow")
        record = view[at : at + length]
        if zlib.crc32(record) != checksum:
            raise BadFrame(index, "crc32", f"{checksum:#010x}", f"{zlib.crc32(record):#010x}, the CRC-32 of the record")
        yield record
        at, index = at + length, index + 1


def read_file(file: BinaryIO, record_bytes: int) -> Iterator[bytes]:
    """The records in a file of frames, up to the first frame that is cut short, damaged, or longer than `record_bytes`. The file
    then stands behind the last record."""
    while True:
        at = file.tell()
        head = file.read(HEAD.size)
        length, checksum = HEAD.unpack(head) if len(head) == HEAD.size else (record_bytes + 1, 0)
        record = file.read(length) if length <= record_bytes else b""
        if length > record_bytes or len(record) != length or zlib.crc32(record) != checksum:
            file.seek(at)
            return
        yield record
