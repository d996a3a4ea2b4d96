"""Reads the offline files of Weights & Biases (`run-*.wandb`).

A file is a log in the format of LevelDB: 7 bytes of its own, then data in blocks of 32 KiB, whose counting includes these 7
bytes. A block holds fragments: a CRC-32 of the fragment's kind and data (u32), the length of the data (u16), and the kind (u8),
which is 1 for a whole record, else 2, 3 and 4 for the first, a middle and the last part of one. Fewer than 7 bytes at the end of
a block are padding. Each record is a Record in protobuf, whose field says what it holds: history (2), summary (3), config (5),
system metrics (7), the run (17), its exit (18).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO

from server.importing.found_run import Advance, FoundRun, Unreadable, as_float, parse_json
from server.importing.importer import Candidate, Claimed, Importer
from server.importing.protobuf import fields, signed, submessages, text
from stablessm_core.telemetry.nonfinite import NONFINITE

TOOL = "W&B"
MAGIC = b":W&B"
FILE_HEAD, BLOCK = 7, 32 << 10
HEAD = struct.Struct("<IHB")
WHOLE, FIRST, MIDDLE, LAST = 1, 2, 3, 4
HISTORY, SUMMARY, CONFIG, SYSTEM, RUN, EXIT = 2, 3, 5, 7, 17, 18  # fields of a Record
GROUPS = {"group": 6, "job": 7, "sweep": 12}  # tags of a run, and the fields of a Run that they come from
UNFINISHED = "the file ends inside a record"
INTERRUPTED = 255  # the exit code after Ctrl-C


def read(path: Path, advance: Advance, *, growing: bool = False) -> FoundRun:
    """The run in a file. A later file of the same run, which was resumed, has the same identity. growing: a record that is not
    whole yet is no damage. Raises Unreadable."""
    run = FoundRun(TOOL, "")
    ended, step = False, 0
    with path.open("rb") as file:
        file.seek(FILE_HEAD)
        try:
            for record in _records(file, advance):
                for kind, value in fields(record):
                    if not isinstance(value, bytes):
                        continue
                    if kind == HISTORY:
                        step = _add_history(run, value, step)
                    elif kind == SUMMARY:
                        add_summary(run, {".".join(names): found for names, found in _items(value, 1)})
                    elif kind == CONFIG:
                        _add_config(run, value)
                    elif kind == SYSTEM:
                        run.left_out["measurements of the machine"] += 1
                    elif kind == RUN:
                        _describe(run, value)
                    elif kind == EXIT:
                        ended = True
                        _end(run, value)
        except ValueError as error:
            if not (growing and str(error) == UNFINISHED):
                run.remarks.append(f"{path}: {error} at byte {file.tell():,}; it is read up to there")
    if not run.identity:
        raise Unreadable(f"{path} holds no run: its process was killed before W&B wrote anything, or its beginning is damaged")
    if not ended:
        run.reason = "its file has no end: the process was killed, or it still runs"
    return run


def _records(file: BinaryIO, advance: Advance) -> Iterator[bytes]:
    """The records in order. Raises ValueError at the first damage, after the file is back at its beginning."""
    parts: list[bytes] = []
    while True:
        at = file.tell()
        left = BLOCK - at % BLOCK
        if left < HEAD.size:
            file.seek(left, 1)
            continue
        head = file.read(HEAD.size)
        if not head and not parts:
            return
        checksum, length, kind = HEAD.unpack(head) if len(head) == HEAD.size else (0, 0, 0)
        data = file.read(length)
        whole = len(head) == HEAD.size and len(data) == length
        if not whole or kind not in (WHOLE, FIRST, MIDDLE, LAST) or (kind in (WHOLE, FIRST)) == bool(parts):
            file.seek(at)
            raise ValueError("the file is damaged" if whole else UNFINISHED)
        if zlib.crc32(data, zlib.crc32(bytes((kind,)))) != checksum:
            file.seek(at)
            raise ValueError("a record is damaged")
        parts.append(data)
        advance(file.tell() - at)
        if kind in (WHOLE, LAST):
            yield b"".join(parts)
            parts = []


def _items(message: bytes, number: int) -> Iterator[tuple[list[str], Any]]:
    """The names, from the outermost inwards, and the value of each item in a history, a summary or a config."""
    for item in submessages(message, number):
        names, value = [], None
        for field, data in fields(item):
            if field in (1, 2) and (name := text(data)):
                names.append(name)
            elif field == 16:
                with suppress(ValueError):
                    value = parse_json(text(data))
        yield names, value


def _add_history(run: FoundRun, message: bytes, step: int) -> int:
    """Add what was logged at a step, and return the step."""
    values = {}
    for names, value in _items(message, 1):
        values["/".join(names)] = value
        if len(names) > 1:
            run.former_names["/".join(names)] = ".".join(names)
    numbered = [signed(number) for part in submessages(message, 2) for field, number in fields(part) if field == 1]
    given = values.get("_step")
    step = given if isinstance(given, int) else numbered[0] if numbered else step
    add_logged(run, step, values)
    return step


def add_logged(run: FoundRun, step: int, values: dict[str, Any]) -> None:
    """Add what a program logged at a step. Names that begin with _ are W&B's own: _step, _runtime, _timestamp."""
    if isinstance(at := values.get("_timestamp"), int | float):
        run.saw(as_float(at))
    media = {name.removesuffix("/_type"): kind for name, kind in values.items() if name.endswith("/_type")}
    for kind in media.values():
        run.left_out[f"values of the kind {str(kind)[:40]}"] += 1
    inside = tuple(f"{name}/" for name in media)
    for name, value in values.items():
        if not name.startswith("_") and not (inside and name.startswith(inside)):
            run.add_json(name, step, value)


def add_summary(run: FoundRun, values: dict[str, Any]) -> None:
    """Keep the numbers of a summary as final numbers of the run."""
    for name, value in values.items():
        number = float(value) if isinstance(value, str) and value in NONFINITE else value
        if isinstance(number, int | float) and not name.startswith("_"):
            run.result[name] = as_float(number)


def _add_config(run: FoundRun, message: bytes) -> None:
    for names, value in _items(message, 1):
        if names[:1] != ["_wandb"]:  # W&B's notes about itself
            run.config[".".join(names)] = value


def _describe(run: FoundRun, message: bytes) -> None:
    found: dict[int, int | bytes] = {}
    tags = []
    for field, value in fields(message):
        found[field] = value
        if field == 4 and isinstance(value, bytes):
            _add_config(run, value)
        elif field == 5 and isinstance(value, bytes):
            add_summary(run, {".".join(names): found for names, found in _items(value, 1)})
        elif field == 10:
            tags.append(text(value))
        elif field == 17 and isinstance(value, bytes):
            seconds = next((number for part, number in fields(value) if part == 1), 0)
            run.saw(float(signed(seconds)))
    tags += [f"{kind}:{text(found[number])}" for kind, number in GROUPS.items() if text(found.get(number, b""))]
    run_id, project, name, notes = (text(found.get(number, b"")) for number in (1, 3, 8, 9))
    run.identity, run.name, run.notes, run.tags = f"{project}\0{run_id}", name or run_id, notes, tags


def _end(run: FoundRun, message: bytes) -> None:
    code = next((signed(value) for field, value in fields(message) if field == 1), 0)
    if code:
        run.status, run.reason = "cancelled" if code == INTERRUPTED else "failed", f"exit code {code}"


def identity_of(path: Path) -> str:
    """The identity of the run in a file; if it holds none, the path."""
    run = FoundRun(TOOL, str(path))
    with path.open("rb") as file, suppress(ValueError):
        file.seek(FILE_HEAD)
        for record in _records(file, lambda _: None):
            for kind, value in fields(record):
                if kind == RUN and isinstance(value, bytes):
                    _describe(run, value)
                    return run.identity
    return run.identity


def _claim(file: Candidate) -> str | None:
    return identity_of(file.path) if file.head.startswith(MAGIC) else None


def _runs(files: Claimed, advance: Advance) -> Iterator[FoundRun]:
    """The run in these files: the first one, and those of later processes that resumed it."""
    first, *later = (read(path, advance, growing=files.growing) for path in sorted(files.paths))
    for run in later:
        first.continue_with(run)
    yield first


IMPORTER = Importer("offline files of W&B (run-*.wandb)", _claim, _runs)
