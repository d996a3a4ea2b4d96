"""Reads what can be imported, for tests."""

from __future__ import annotations

import struct
from pathlib import Path

from server.importing.crc32c import masked_crc32c
from server.importing.found_run import FoundRun
from server.importing.sources import find_sources
from tests.server.importing.samples.write import ACCURACY, LOSS, STEPS


def found(path: Path, *, step: str | None = None) -> list[FoundRun]:
    """The runs in the path. Every file must be readable, and the progress must end at its total."""
    read: list[int] = []
    complaints: list[str] = []
    sources = find_sources(path, step, complaints.append)
    runs = [run for source in sources for run in source.read(read.append)]
    assert complaints == []
    assert sum(read) <= sum(source.size for source in sources)
    return runs


def points(run: FoundRun, name: str) -> list[tuple[int, str]]:
    """The steps and values of a series, as `spelled`."""
    steps, values = run.series()[name]
    return spelled(steps.tolist(), values.tolist())


def spelled(steps: list[int], values: list[float]) -> list[tuple[int, str]]:
    """The points with the bits of their values, so that NaN and -0.0 can be compared. Stored numbers have 32 bits."""
    return [
        (step, "nan" if value != value else struct.pack(">f", value).hex()) for step, value in zip(steps, values, strict=True)
    ]


LOSSES, ACCURACIES = spelled(STEPS, LOSS), spelled(STEPS, ACCURACY)
UNSIGNED = spelled(STEPS, [value or 0.0 for value in LOSS])  # SQLite keeps no -0.0


def write_events(path: Path, events: list[tuple[int, float]], tag: str = "loss", *, at: float = 1_700_000_000.0) -> Path:
    """Write an event file as TensorBoard's writers do: a first event with the time, then one for each step and value."""
    path.parent.mkdir(parents=True, exist_ok=True)
    records = [b"\x09" + struct.pack("<d", at) + b"\x1a\x0dbrain.Event:2"]
    for step, number in events:
        value = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x15" + struct.pack("<f", number)
        summary = b"\x0a" + bytes([len(value)]) + value
        event = b"\x09" + struct.pack("<d", at + 1 + step) + b"\x10" + bytes([step]) + b"\x2a" + bytes([len(summary)]) + summary
        records.append(event)
    path.write_bytes(b"".join(map(record_of, records)))
    return path


def record_of(data: bytes) -> bytes:
    """The record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    checksums = [struct.pack("<I", masked_crc32c(part)) for part in (length, data)]
    return length + checksums[0] + data + checksums[1]
