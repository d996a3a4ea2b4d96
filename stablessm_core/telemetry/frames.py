"""Frames: the bytes in which messages travel to the server and lie in a spool.

A frame is the length of its record (u32), the CRC-32 of its record (u32), both little-endian, and the record, which is what
`messages.to_bytes` returns. The server reads the frames of other programs with `read_records`. It trusts no byte of them: every
size is bounded before memory of that size is allocated, and every refusal names the frame, the field, what was given and what
is allowed.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

from stablessm_core.telemetry.free_json import Refused
from stablessm_core.telemetry.strict_messages import Budget, Received, read_record

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


def pack(records: Iterable[bytes]) -> bytes:
    """The frames of these records, one after the other."""
    return b"".join(part for record in records for part in (HEAD.pack(len(record), zlib.crc32(record)), record))


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


def read_records(body: bytes, limits: Limits = LIMITS) -> list[Received]:
    """The messages in a body, each checked as far as that is possible without the run's catalogue. Raises BadFrame."""
    budget, found = Budget(limits.decoded_bytes), []
    for index, record in enumerate(unpack(body, limits)):
        try:
            found.append(read_record(record, budget))
        except Refused as refused:
            raise BadFrame(index, refused.field, refused.given, refused.allowed) from None
    return found


def read_file(file: BinaryIO, record_bytes: int = LIMITS.record_bytes) -> Iterator[bytes]:
    """The records in a file of frames, up to the first frame that is cut short, damaged, or longer than `record_bytes`."""
    while len(head := file.read(HEAD.size)) == HEAD.size:
        length, checksum = HEAD.unpack(head)
        record = file.read(length) if length <= record_bytes else b""
        if len(record) != length or zlib.crc32(record) != checksum:
            return
        yield record
