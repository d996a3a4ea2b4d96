"""Reads TensorBoard's event files. The event files of a folder are one run, as in TensorBoard.

A file is a sequence of TFRecords: length (u64), masked CRC-32C of the length (u32), data, masked CRC-32C of the data. The data is
an Event in protobuf: wall_time (1), step (2), summary (5), session_log (7). The scalars of a summary are its values (1) with a
tag (1) and a simple_value (2) or a tensor (8) of one number.
"""

from __future__ import annotations

import hashlib
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from server.importing.crc32c import masked_crc32c
from server.importing.found_run import Advance, FoundRun
from server.importing.importer import Candidate, Claimed, Importer, group_of
from server.importing.protobuf import fields, signed, submessages, text, varints

TOOL = "TensorBoard"
HEAD = struct.Struct("<QI")
EVENTS = "events.out.tfevents"  # in the name of every event file
OF_HPARAMS = re.compile(r"\d{9,10}\.\d+")  # the folders that torch's `add_hparams` makes inside the folder of the run
FIRST_EVENTS = 100  # among which the first scalar is searched
SMALL = 1 << 20  # bytes of an event file that may hold only hyperparameters
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


class Unfinished(ValueError):
    """The file ends inside a record."""


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


def read(paths: list[Path], name: str, advance: Advance, *, growing: bool = False) -> FoundRun:
    """The run in the event files of one folder. growing: a record that is not whole yet is no damage."""
    paths = sorted(paths, key=lambda path: path.name)  # the name begins with the time at which the file was made
    identity, former = _identities(paths[0])
    run = FoundRun(TOOL, identity, name, group=group_of(name, 1), former_identities=[former])
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
                except Unfinished as error:
                    if not growing:
                        run.remarks.append(f"{path}: {error} at byte {at:,}; it is read up to there")
                    break
                except ValueError as error:
                    run.remarks.append(f"{path}: {error} at byte {at:,}; it is read up to there")
                    break
                advance(file.tell() - at)
    return run


def _identities(path: Path) -> tuple[str, str]:
    """What names the run with this first file, and what named it before. The name of the file holds the time, the machine and the
    process. The first event holds the time at which the writer began, which TensorFlow rounds to seconds. The first events with
    scalars tell runs apart whose files have the same name."""
    with path.open("rb") as file:
        first = next(_whole_records(file), b"")
        scalars = [record for record in islice(_whole_records(file), FIRST_EVENTS) if _has_scalar(record)][:1]
    folder = path.resolve().parent.name
    digest = hashlib.sha256(b"".join(len(one).to_bytes(8, "little") + one for one in (first, *scalars))).hexdigest()
    return f"{path.name}\0{folder}\0{digest}", f"{folder}\0{hashlib.sha256(first).hexdigest()}"


def _whole_records(file: BinaryIO) -> Iterator[bytes]:
    """The records from here up to the first one that is damaged or not whole."""
    with suppress(ValueError):
        while (record := _record(file)) is not None:
            yield record


def _has_scalar(event: bytes) -> bool:
    seen = FoundRun(TOOL, "")
    with suppress(ValueError):
        _add_event(seen, event, {})
    return bool(seen.names)


@lru_cache(4096)
def _checksum_of_length(length: bytes) -> int:  # scalars of one name have few lengths
    return masked_crc32c(length)


def _record(file: BinaryIO) -> bytes | None:
    head = file.read(HEAD.size)
    if not head:
        return None
    if len(head) < HEAD.size:
        raise Unfinished("the file ends inside a record")
    length, checksum = HEAD.unpack(head)
    if _checksum_of_length(head[:8]) != checksum or length > LONGEST:
        raise ValueError("the length of a record is damaged")
    data = file.read(length + 4)
    if len(data) < length + 4:
        raise Unfinished("the file ends inside a record")
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
        elif number == 1 and isinstance(value, bytes) and len(value) == 8:
            run.saw(struct.unpack("<d", value)[0])
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


def _claim(file: Candidate) -> Path | None:
    """The folder of the run. The folder that torch's `add_hparams` makes belongs to the run in the folder above."""
    if not recognizes(file.head):
        return None
    folder = file.path.parent
    inside = folder != file.root and OF_HPARAMS.fullmatch(folder.name)
    return folder.parent if inside and any(folder.parent.glob(f"*{EVENTS}*")) else folder


def _read(files: Claimed, advance: Advance) -> Iterator[FoundRun]:
    folder = min((path.parent for path in files.paths), key=lambda path: len(path.parts))
    own = [path for path in files.paths if path.parent == folder]
    name = folder.resolve().name if folder == files.root else folder.relative_to(files.root).as_posix()
    run = read(own, name, advance, growing=files.growing)
    for path in files.paths:
        if path.parent != folder:
            inner = read([path], name, advance, growing=files.growing)
            inner.status = inner.status if inner.status != "finished" else run.status
            inner.reason = run.reason
            run.continue_with(inner)
    above = folder
    while above != files.root and not run.config:
        above = above.parent
        run.config = _hyperparameters(above)
    if run.names or run.left_out or run.remarks or not _inside(folder):
        yield run


def _hyperparameters(folder: Path) -> dict[str, Any]:
    """The hyperparameters in a folder whose event files hold nothing else: Keras writes them above the folders of its runs."""
    paths = [path for path in folder.glob(f"*{EVENTS}*") if path.is_file() and path.stat().st_size <= SMALL]
    run = read(paths, "", lambda _: None) if paths else FoundRun(TOOL, "")
    return {} if run.names else run.config


def _inside(folder: Path) -> bool:
    """True if folders below this one hold event files, which get its hyperparameters."""
    return any(path.parent != folder for path in folder.rglob(f"*{EVENTS}*"))


IMPORTER = Importer("event files of TensorBoard", _claim, _read)
