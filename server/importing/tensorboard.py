"""Reads TensorBoard's event files. The event files of a folder are one run, as in TensorBoard.

A file is a sequence of TFRecords: length (u64), masked CRC-32C of the length (u32), data, masked CRC-32C of the data. The data is
an Event in protobuf: wall_time (1), step (2), summary (5), session_log (7). The scalars of a summary are its values (1) with a
tag (1) and a simple_value (2) or a tensor (8) of one number.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from server.importing.crc32c import masked_crc32c
from server.importing.found_run import Advance, FoundRun
from server.importing.protobuf import fields, signed, submessages, text, varints

TOOL = "TensorBoard"
HEAD = struct.Struct("<QI")
LONGEST = 1 << 30  # bytes of a record; a length above it is damage
START = 1  # session_log.status of a writer that goes back to a step
KINDS = {3: "other summaries", 4: "images", 5: "histograms", 6: "audio clips"}  # by the number of the value's field
PLUGINS = {
    "images": "images", "histograms": "histograms", "audio": "audio clips", "text": "texts", "pr_curves": "curves",
    "mesh": "meshes",
}  # fmt: skip
HPARAMS = "hparams"
STATUSES = {1: "finished", 2: "failed"}  # of a session_end_info
TYPES: dict[int, Any] = {1: "<f4", 2: "<f8", 3: "<i4", 4: "u1", 5: "<i2", 6: "i1", 9: "<i8", 10: "?", 17: "<u2", 19: "<f2"}
BFLOAT16 = 14


def recognizes(head: bytes) -> bool:
    """True if the file begins with a TFRecord that holds an event."""
    if len(head) < HEAD.size:
        return False
    length: int
    length, checksum = HEAD.unpack_from(head)
    if length > LONGEST or masked_crc32c(head[:8]) != checksum:
        return False
    try:
        return any(number == 1 and isinstance(value, bytes) for number, value in fields(head[HEAD.size : HEAD.size + length]))
    except ValueError:  # the first event is longer than the head
        return len(head) < HEAD.size + length


def read(paths: list[Path], name: str, advance: Advance) -> FoundRun:
    """The run in the event files of one folder."""
    paths = sorted(paths, key=lambda path: path.name)  # the name begins with the time at which the file was made
    run = FoundRun(TOOL, _identity(paths[0]), name)
    plugins: dict[str, str] = {}
    for path in paths:
        with path.open("rb") as file:
            while True:
                at = file.tell()
                try:
                    record = _record(file)
                    if record is None:
                        break
                    _add_event(run, record, plugins)
                except ValueError as error:
                    run.remarks.append(f"{path}: {error} at byte {at:,}; it is read up to there")
                    break
                advance(file.tell() - at)
    return run


def _identity(path: Path) -> str:
    # the first event holds the time at which the writer began, in fractions of a microsecond
    with path.open("rb") as file:
        try:
            first = _record(file) or b""
        except ValueError:
            first = b""
    return f"{path.resolve().parent.name}\0{hashlib.sha256(first).hexdigest()}"


@lru_cache(4096)
def _checksum_of_length(length: bytes) -> int:  # scalars of one name have few lengths
    return masked_crc32c(length)


def _record(file: BinaryIO) -> bytes | None:
    head = file.read(HEAD.size)
    if not head:
        return None
    if len(head) < HEAD.size:
        raise ValueError("the file ends inside a record")
    length, checksum = HEAD.unpack(head)
    if _checksum_of_length(head[:8]) != checksum or length > LONGEST:
        raise ValueError("the length of a record is damaged")
    data = file.read(length + 4)
    if len(data) < length + 4:
        raise ValueError("the file ends inside a record")
    record = data[:-4]
    if masked_crc32c(record) != int.from_bytes(data[-4:], "little"):
        raise ValueError("a record is damaged")
    return record


def _add_event(run: FoundRun, event: bytes, plugins: dict[str, str]) -> None:
    step, summaries = 0, []
    for number, value in fields(event):
        if number == 2:
            step = signed(value)
        elif number == 5 and isinstance(value, bytes):
            summaries.append(value)
        elif number == 1 and run.started_at is None and isinstance(value, bytes):
            (run.started_at,) = struct.unpack("<d", value)
        elif number == 7 and isinstance(value, bytes) and (1, START) in fields(value):
            run.drop_from(step)
        elif number in (4, 9):
            run.left_out["graphs"] += 1
    for summary in summaries:
        for value in submessages(summary, 1):
            _add_value(run, step, value, plugins)


def _add_value(run: FoundRun, step: int, message: bytes, plugins: dict[str, str]) -> None:
    tag, number, kind, content = "", None, "", b""
    for field, value in fields(message):
        if field == 1:
            tag = text(value)
        elif field == 2 and isinstance(value, bytes) and len(value) == 4:
            (number,) = struct.unpack("<f", value)
        elif field in KINDS:
            kind = KINDS[field]
        elif field == 8 and isinstance(value, bytes):
            number = _scalar(value)
            kind = "" if number is not None else "tensors"
        elif field == 9 and isinstance(value, bytes):
            for plugin in submessages(value, 1):
                for part, data in fields(plugin):
                    if part == 1:
                        plugins[tag] = text(data)
                    elif part == 2 and isinstance(data, bytes):
                        content = data
    plugin_name = plugins.get(tag, "")
    if not plugin_name and number is not None:
        run.add(tag, step, number)
    elif plugin_name == HPARAMS:
        _add_hparams(run, content)
    elif plugin_name in PLUGINS:
        run.left_out[PLUGINS[plugin_name]] += 1
    elif number is not None:
        run.add(tag, step, number)
    else:
        run.left_out[kind or "other summaries"] += 1


def _scalar(tensor: bytes) -> float | None:
    """The number in a TensorProto; None if it holds several numbers, or none."""
    kind, numbers, content = 0, [], b""
    for field, value in fields(tensor):
        if field == 1 and isinstance(value, int):
            kind = value
        elif field == 2 and isinstance(value, bytes):
            for dimension in submessages(value, 2):
                if any(part == 1 and size != 1 for part, size in fields(dimension)):
                    return None
        elif field == 4 and isinstance(value, bytes):
            content = value
        elif field in (5, 6) and isinstance(value, bytes):
            numbers += np.frombuffer(value, "<f4" if field == 5 else "<f8").tolist()
        elif field in (7, 10, 11):
            numbers += varints(value)
        elif field == 13:  # half precision, as the bits of integers
            bits = varints(value)
            halves = np.array(bits, np.uint16)
            numbers += (_bfloat16(halves) if kind == BFLOAT16 else halves.view(np.float16)).tolist()
    if content and kind in TYPES:
        numbers = np.frombuffer(content, TYPES[kind]).tolist()
    elif content and kind == BFLOAT16:
        numbers = _bfloat16(np.frombuffer(content, "<u2")).tolist()
    return float(numbers[0]) if len(numbers) == 1 else None


def _bfloat16(bits: np.ndarray) -> np.ndarray:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _add_hparams(run: FoundRun, content: bytes) -> None:
    """Take the hyperparameters and the status from the data of TensorBoard's plugin of this name."""
    for field, value in fields(content):
        if field == 3 and isinstance(value, bytes):  # how the session began
            for entry in submessages(value, 1):
                key, setting = _entry(entry)
                run.config[key] = setting
        elif field == 4 and isinstance(value, bytes):  # how it ended
            status = next((number for part, number in fields(value) if part == 1), 0)
            run.status = STATUSES.get(status, run.status) if isinstance(status, int) else run.status


def _entry(entry: bytes) -> tuple[str, Any]:
    """A hyperparameter and its value: a google.protobuf.Value."""
    key, setting = "", None
    for part, value in fields(entry):
        if part == 1:
            key = text(value)
        elif isinstance(value, bytes):
            setting = next(_values(value), None)
    return key, setting


def _values(value: bytes) -> Iterator[Any]:
    for field, data in fields(value):
        if field == 2 and isinstance(data, bytes):
            (number,) = struct.unpack("<d", data)
            yield number
        elif field == 3:
            yield text(data)
        elif field == 4:
            yield bool(data)
