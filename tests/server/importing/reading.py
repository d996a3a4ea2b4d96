"""Reads what can be imported, for tests."""

from __future__ import annotations

import struct
from pathlib import Path

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
