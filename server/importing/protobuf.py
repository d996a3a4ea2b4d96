"""Reads the fields of a protobuf message without its description."""

from __future__ import annotations

from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5  # wire types


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of each field, in order: an unsigned integer for a varint, bytes for everything else. Raises ValueError if
    the message is damaged."""
    at, size = 0, len(data)
    while at < size:
        key = data[at]
        at += 1
        if key >= 0x80:
            key, at = _varint(data, at - 1)
        wire = key & 7
        if wire == VARINT:
            value, at = _varint(data, at)
            yield key >> 3, value
            continue
        if wire == BYTES:
            length, at = _varint(data, at)
        elif wire == FIXED64:
            length = 8
        elif wire == FIXED32:
            length = 4
        else:
            raise ValueError(f"wire type {wire}")
        end = at + length
        if end > size:
            raise ValueError("a field is longer than its message")
        yield key >> 3, data[at:end]
        at = end


def submessages(data: bytes, number: int) -> Iterator[bytes]:
    """The values of all fields with this number that are no varints."""
    return (value for field, value in fields(data) if field == number and isinstance(value, bytes))


def text(value: int | bytes) -> str:
    """The text of a string field; "" for another one."""
    return value.decode(errors="replace") if isinstance(value, bytes) else ""


def signed(value: int | bytes) -> int:
    """The value of a field of the type int32 or int64; 0 for another one."""
    if isinstance(value, bytes):
        return 0
    return value - (1 << 64) if value >= 1 << 63 else value


def varints(value: int | bytes) -> list[int]:
    """The numbers of a repeated integer field, packed or alone."""
    if isinstance(value, int):
        return [signed(value)]
    found, at = [], 0
    while at < len(value):
        number, at = _varint(value, at)
        found.append(signed(number))
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:  # most numbers have one byte
        return data[at], at + 1
    value = shift = 0
    while True:
        if at >= len(data) or shift > 63:
            raise ValueError("a number is cut short")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
