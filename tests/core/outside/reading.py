"""Reads the file of a watched run back."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from stablessm_core.report.messages import (
    CatalogueMessage,
    EndMessage,
    EnvironmentMessage,
    MetricsMessage,
    from_bytes,
)
from stablessm_core.report.outbox import RunFile, read_run_file
from stablessm_core.telemetry.sink import Flush, MemorySink


@dataclass
class Recorded:
    """The content of a run's file. sink: its series and alerts."""

    file: RunFile
    sink: MemorySink = field(default_factory=MemorySink)
    ends: list[EndMessage] = field(default_factory=list)
    metrics: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    facts: dict[str, object] = field(default_factory=dict)


def read(directory: Path) -> Recorded:
    """The only run in the directory."""
    (path,) = directory.glob("*.ssmr")
    found = Recorded(read_run_file(path))
    for record in found.file.records():
        message = from_bytes(record)
        if isinstance(message, CatalogueMessage):
            found.sink.open(message.series)
        elif isinstance(message, Flush):
            found.sink.write(message)
        elif isinstance(message, EndMessage):
            found.ends.append(message)
        elif isinstance(message, EnvironmentMessage):
            found.facts |= message.facts
        elif isinstance(message, MetricsMessage):
            for name, values in message.values.items():
                kept = [(s, v) for s, v in zip(message.steps, values, strict=True) if v is not None]
                found.metrics.setdefault(name, []).extend(kept)
    return found
