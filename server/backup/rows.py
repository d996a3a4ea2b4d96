"""Encodes and decodes the rows of a part of a backup. A row consists of the length of its head (4 bytes, little-endian), the
head, and the binary values. The head is a JSON list with one value per column; for a binary value, the list contains the length
of the value.

The reader does not trust its input: a part may be an attempt to fill the memory, or may not contain rows at all. So the reader
keeps one row in memory at a time and compares each announced length with the limit before it reads that many bytes.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import IO, Any

import zstandard

from server.backup.sealed_tar import CHUNK_BYTES

MAX_PART_BYTES = 256 << 20  # maximum uncompressed size of a part; only a part with a very large row comes close
MAX_HEAD_BYTES = 32 << 20
_LENGTH = struct.Struct("<I")
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined] # decodes one value at any position

Row = tuple[Any, ...]


class NotRows(ValueError):
    """A part does not contain valid rows."""


def encode_row(row: Row, binary: list[bool]) -> bytes:
    payloads = [value for value, is_bytes in zip(row, binary, strict=True) if is_bytes and value is not None]
    values = [len(v) if is_bytes and v is not None else v for v, is_bytes in zip(row, binary, strict=True)]
    head = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"".join((_LENGTH.pack(len(head)), head, *payloads))


def decode_rows(data: bytes, binary: list[bool]) -> Iterator[Row]:
    """Decode rows that `encode_row` has encoded. Raises NotRows."""
    return _rows(io.BytesIO(data).read, binary)


def read_part(content: IO[bytes], binary: list[bool]) -> Iterator[Row]:
    """The rows of a compressed part, decoded one by one. Raises NotRows."""
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_PART_BYTES)
    left = MAX_PART_BYTES
    with decompressor.stream_reader(content, read_size=CHUNK_BYTES, read_across_frames=False, closefd=False) as plain:

        def read(size: int) -> bytes:
            nonlocal left
            if size > left:
                raise NotRows(f"it unpacks to more than {MAX_PART_BYTES:,} bytes")
            try:
                data = _exactly(plain, size)
            except zstandard.ZstdError as error:
                raise NotRows(str(error)) from None
            left -= len(data)
            return data

        yield from _rows(read, binary)


def _exactly(plain: Any, size: int) -> bytes:
    pieces, missing = [], size
    while missing and (piece := plain.read(min(missing, CHUNK_BYTES))):
        pieces.append(piece)
        missing -= len(piece)
    return b"".join(pieces)


def _rows(read: Callable[[int], bytes], binary: list[bool]) -> Iterator[Row]:
    while length := read(_LENGTH.size):
        if len(length) < _LENGTH.size or (size := _LENGTH.unpack(length)[0]) > MAX_HEAD_BYTES:
            raise NotRows("a row in it has an unreadable header")
        values = _values(_whole(read, size), len(binary))
        for index, is_bytes in enumerate(binary):
            if is_bytes and values[index] is not None:
                announced = values[index]
                if type(announced) is not int or announced < 0:
                    raise NotRows("a binary value in it has an invalid length")
                values[index] = _whole(read, announced)
        yield tuple(values)


def _whole(read: Callable[[int], bytes], size: int) -> bytes:
    if len(data := read(size)) < size:
        raise NotRows("it ends within a row")
    return data


def _values(head: bytes, count: int) -> list[Any]:
    """The values in a head, one per column. Refuses nested lists, which take a hundred times as much memory as their text."""
    values: list[Any] = []
    try:
        text, at = head.decode("utf-8", "surrogatepass"), 0
        while len(values) < count:
            if text[at] != ("," if values else "[") or text[at + 1] in "[{":
                break
            value, at = _scan(text, at + 1)
            values.append(value)
        if len(values) == count and text[at:] == "]":
            return values
    except (ValueError, StopIteration, IndexError):
        pass
    raise NotRows(f"a row in it does not have {count} plain values")
