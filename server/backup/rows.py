"""The rows of a part: length of the head (4 bytes, little-endian), head (JSON list, one value per column, a binary value as its
length), then the binary values.

What reads them trusts nothing: a part may have been made to fill memory, or to be anything else than rows. One row is held at a
time, and what is announced is compared with what is allowed before it is read.
"""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Iterator
from typing import IO, Any

import zstandard

MAX_PART_BYTES = 256 << 20  # one row may be large; what is larger than this was not written here
MAX_HEAD_BYTES = 32 << 20
CHUNK_BYTES = 1 << 20
_LENGTH = struct.Struct("<I")
_scan = json.JSONDecoder().scan_once  # type: ignore[attr-defined] # one value, wherever it stands

Row = tuple[Any, ...]


class NotRows(ValueError):
    """A part that holds something else than rows."""


def encode_row(row: Row, binary: list[bool]) -> bytes:
    payloads = [value for value, is_bytes in zip(row, binary, strict=True) if is_bytes and value is not None]
    values = [len(v) if is_bytes and v is not None else v for v, is_bytes in zip(row, binary, strict=True)]
    head = json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    return b"".join((_LENGTH.pack(len(head)), head, *payloads))


def decode_rows(data: bytes, binary: list[bool]) -> Iterator[Row]:
    """Inverse of encode_row for several rows. Raises NotRows."""
    return _rows(io.BytesIO(data).read, binary)


def read_part(content: IO[bytes], binary: list[bool]) -> Iterator[Row]:
    """The rows of a compressed part, one after the other. Raises NotRows."""
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
            raise NotRows("a row in it has no head that could be read")
        values = _values(_whole(read, size), len(binary))
        for index, is_bytes in enumerate(binary):
            if is_bytes and values[index] is not None:
                announced = values[index]
                if type(announced) is not int or announced < 0:
                    raise NotRows("a binary value in it has no length")
                values[index] = _whole(read, announced)
        yield tuple(values)


def _whole(read: Callable[[int], bytes], size: int) -> bytes:
    if len(data := read(size)) < size:
        raise NotRows("it ends within a row")
    return data


def _values(head: bytes, count: int) -> list[Any]:
    """As many plain values as there are columns: nested lists would take a hundred times the memory of their text."""
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
