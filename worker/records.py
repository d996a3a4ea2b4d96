"""What a training process wants stored, and its bytes on disk for the time the database is away.

Bytes: length of the head (4, little-endian), head (JSON: kind, fields, shapes and sizes), then the payloads of the blocks.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from typing import Any

from stablessm_core.telemetry.blocks import Block, decode, encode
from stablessm_core.telemetry.detectors import Alert
from stablessm_core.telemetry.series import SeriesSpec
from stablessm_core.telemetry.sinks import Flush


@dataclass(frozen=True)
class CatalogueRecord:
    series: list[SeriesSpec]


@dataclass(frozen=True)
class EnvironmentRecord:
    facts: dict[str, Any]  # device, versions, backend, parameter groups, data


@dataclass(frozen=True)
class CheckpointRecord:
    step: int
    path: str  # relative to the data directory
    sha256: str
    size: int = 0  # bytes


@dataclass(frozen=True)
class TruncateRecord:
    to_step: int
    reason: str


@dataclass(frozen=True)
class EndRecord:
    """How an attempt ended: a final status, or "queued" when it stops here and goes on elsewhere."""

    status: str
    reason: str
    result: dict[str, Any] | None = None
    divergence: dict[str, Any] | None = None


Record = CatalogueRecord | EnvironmentRecord | Flush | CheckpointRecord | TruncateRecord | EndRecord
_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind for kind in (CatalogueRecord, EnvironmentRecord, Flush, CheckpointRecord, TruncateRecord, EndRecord)
}


def size_of(record: Record) -> int:
    """Bytes the record keeps in memory, roughly."""
    return 500 + sum(block.values.nbytes for block in record.blocks) if isinstance(record, Flush) else 500


def to_bytes(record: Record) -> bytes:
    payloads: list[bytes] = []
    if isinstance(record, Flush):
        payloads = [encode(block.values) for block in record.blocks]
        fields: dict[str, Any] = {
            "alerts": [asdict(alert) for alert in record.alerts],
            "step": record.step,
            "steps_per_second": record.steps_per_second,
            "so_far": dict(record.so_far),
            "blocks": [
                [b.group, b.level, b.first_step, b.stride, b.values.shape, len(payload)]
                for b, payload in zip(record.blocks, payloads, strict=True)
            ],
        }
    else:
        fields = asdict(record)
    head = json.dumps({"kind": type(record).__name__, **fields}).encode()  # non-finite values as Python writes and reads them
    return b"".join((struct.pack("<I", len(head)), head, *payloads))


def from_bytes(data: bytes) -> Record:
    """Inverse of to_bytes; raises ValueError on damaged bytes."""
    if len(data) < 4 or len(data) < 4 + (length := struct.unpack_from("<I", data)[0]):
        raise ValueError(f"record of {len(data)} bytes is cut short")
    fields = json.loads(data[4 : 4 + length])
    kind = _KINDS[fields.pop("kind")]
    if kind is CatalogueRecord:
        return CatalogueRecord([SeriesSpec(**one) for one in fields["series"]])
    if kind is not Flush:
        record: Record = kind(**fields)
        return record
    blocks, at = [], 4 + length
    for group, level, first_step, stride, shape, size in fields["blocks"]:
        blocks.append(Block(group, level, first_step, stride, decode(data[at : at + size], tuple(shape))))
        at += size
    alerts = [Alert(**one) for one in fields["alerts"]]
    return Flush(blocks, alerts, fields["step"], fields["steps_per_second"], fields.get("so_far", {}))  # an older one has none
